//! What becomes of large blocks that are freed: the operating system has them back.
//!
//! glibc maps blocks of their own pages from 128 KiB on, but raises that size to the largest such
//! block that was freed, up to 32 MiB. Everything below it lies in a heap that shrinks at its end
//! alone: steps of many lengths, evaluations and saves left up to a third of a run's memory in gaps
//! between blocks in use. Other C libraries are left as they are.

/// Bytes from which a block has pages of its own. Smaller ones are freed and taken so often that
/// clearing their pages would cost time.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_PAGES: i32 = 1 << 20;

/// Free bytes that stay at the end of the heap.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT_AT_END: i32 = 16 << 20;

/// Has the C library give large blocks back when they are freed; for the first lines of a program,
/// before it has other threads.
pub fn give_large_blocks_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (setting, bytes) in [
        (libc::M_MMAP_THRESHOLD, OWN_PAGES),
        (libc::M_TRIM_THRESHOLD, KEPT_AT_END),
    ] {
        // SAFETY: two settings with values in their range; a refusal leaves the heap as it was.
        let _ = unsafe { libc::mallopt(setting, bytes) };
    }
}
