//! A slice that several threads write in disjoint parts.

use std::marker::PhantomData;

/// An exclusive borrow of elements, handed out in parts.
#[derive(Debug)]
pub(crate) struct Shared<'a, T = f32> {
    first: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: the elements may be written from any thread; callers of `slice` guarantee that parts are
// disjoint.
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

    /// `len` elements starting at `start`.
    ///
    /// # Safety
    ///
    /// No one else uses any of them.
    ///
    /// # Panics
    ///
    /// If the slice is shorter.
    #[allow(
        clippy::mut_from_ref,
        reason = "the caller guarantees that parts are disjoint"
    )]
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start + len <= self.len, "the part exceeds the slice");
        // SAFETY: in bounds, and exclusive by the caller's guarantee.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(start), len) }
    }
}
