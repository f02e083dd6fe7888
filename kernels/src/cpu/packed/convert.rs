//! Converts slices of f32 to the element type of a product.

use std::mem::MaybeUninit;

use crate::cpu::isa::for_each_isa;
use crate::cpu::number::Number;

for_each_isa! {
    /// Narrows a slice.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub(crate) fn narrow_slice[T: Number](from: &[f32], to: &mut [MaybeUninit<T>]) {
        assert_eq!(from.len(), to.len(), "slices of different lengths");
        for (to, &x) in to.iter_mut().zip(from) {
            to.write(T::narrow(x));
        }
    }
}

/// A slice narrowed.
pub(crate) fn narrowed<T: Number>(from: &[f32]) -> Vec<T> {
    let mut to = Vec::with_capacity(from.len());
    narrow_slice(from, &mut to.spare_capacity_mut()[..from.len()]);
    // SAFETY: the capacity suffices, and all elements were written.
    unsafe { to.set_len(from.len()) };
    to
}
