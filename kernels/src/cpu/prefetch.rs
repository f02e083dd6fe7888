//! Prefetches cache lines; only on x86-64.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

/// Prefetches a cache line for reading.
#[inline(always)]
pub(crate) fn prefetch_l1<T>(first: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: available on every x86-64; any address is allowed.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(first.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = first;
}

/// Prefetches a cache line into the L2 cache, for reading later.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn prefetch_l2<T>(first: *const T) {
    // SAFETY: as above.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(first.cast()) };
}
