//! Asks memory for a line of the cache before it is read. Only x86-64 is asked.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

/// Has a cache line brought that will be read.
#[inline(always)]
pub(crate) fn ask_to_read<T>(first: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of what every x86-64 has; any address may be asked for.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(first.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = first;
}

/// Has a cache line brought to the second level that will be read after what is read now.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn ask_to_read_later<T>(first: *const T) {
    // SAFETY: as above.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(first.cast()) };
}
