//! One slice that several threads write, each its own part.

use std::marker::PhantomData;

/// An exclusive borrow of numbers, to be handed out in parts.
#[derive(Debug)]
pub(crate) struct Shared<'a, T = f32> {
    first: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: such values may be written from any thread; that parts are disjoint is promised by
// whoever takes them.
unsafe impl<T: Send> Sync for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self {
            first: slice.as_mut_ptr(),
            len: slice.len(),
            lifetime: PhantomData,
        }
    }

    /// `len` numbers from `start` on.
    ///
    /// # Safety
    ///
    /// No one else holds any of them.
    ///
    /// # Panics
    ///
    /// If the slice is shorter.
    #[allow(
        clippy::mut_from_ref,
        reason = "the caller promises that parts are disjoint"
    )]
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start + len <= self.len, "a part of the slice");
        // SAFETY: in bounds, and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(start), len) }
    }
}
