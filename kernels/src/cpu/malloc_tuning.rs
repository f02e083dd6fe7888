//! Returns large freed blocks to the operating system, and reports failed allocations.
//!
//! glibc maps blocks of 128 KiB or more separately, but raises this threshold to the largest such
//! block that was freed, up to 32 MiB. Smaller blocks are in a heap that shrinks only at its end.
//! With steps of varying length, evaluations and saves, gaps between used blocks took up to a third
//! of a run's memory. Other C libraries are not changed.
//!
//! Most programs end with a signal when an allocation fails; this one first prints which limit was
//! reached.

use std::alloc::{GlobalAlloc, Layout, System};

/// Bytes from which a block gets its own pages. Smaller blocks are freed and allocated so often
/// that clearing their pages would take too long.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_PAGES: i32 = 1 << 20;

/// Free bytes that remain at the end of the heap.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT_AT_END: i32 = 16 << 20;

/// Makes the C library return large blocks when they are freed. Call it at the start of a program,
/// before it has other threads.
pub fn return_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (setting, bytes) in [
        (libc::M_MMAP_THRESHOLD, OWN_PAGES),
        (libc::M_TRIM_THRESHOLD, KEPT_AT_END),
    ] {
        // SAFETY: two settings with values in their range; on failure the heap is unchanged.
        let _ = unsafe { libc::mallopt(setting, bytes) };
    }
}

/// The system allocator, which also reports failed allocations.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReportingAllocator;

// SAFETY: all calls are forwarded to `System` with the same block and layout; the only addition is
// a check for failed allocations.
unsafe impl GlobalAlloc for ReportingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this function.
        report_null(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block was allocated by `System`, see above.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this function.
        report_null(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the block was allocated by `System`, see above.
        report_null(unsafe { System.realloc(block, layout, size) }, size)
    }
}

#[inline]
fn report_null(block: *mut u8, size: usize) -> *mut u8 {
    if block.is_null() {
        failure::report(size);
    }
    block
}

/// Sets the exit status of a program that aborts because an allocation failed. Call it at the start
/// of a program.
pub fn set_exit_status(status: u8) {
    failure::set_exit_status(status);
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
mod failure {
    pub(super) fn report(_: usize) {}

    pub(super) fn set_exit_status(_: u8) {}
}

/// Nothing here may allocate memory on the heap.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod failure {
    use std::fmt::{self, Write};
    use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

    /// Exit status after a failed allocation.
    static STATUS: AtomicI32 = AtomicI32::new(0);
    static HAS_FAILED: AtomicBool = AtomicBool::new(false);

    pub(super) fn set_exit_status(status: u8) {
        STATUS.store(i32::from(status), Ordering::Relaxed);
        let handler: extern "C" fn(libc::c_int) = aborted;
        // SAFETY: the handler is async-signal-safe and has the type of a handler.
        unsafe { libc::signal(libc::SIGABRT, handler as libc::sighandler_t) };
    }

    /// The standard library aborts after a failed allocation. If the program aborts for another
    /// reason, this returns and the abort continues.
    extern "C" fn aborted(_: libc::c_int) {
        if HAS_FAILED.load(Ordering::Relaxed) {
            // SAFETY: `_exit` is allowed in a signal handler.
            unsafe { libc::_exit(STATUS.load(Ordering::Relaxed)) };
        }
    }

    /// Prints the first failed allocation. The caller may still handle the failure.
    pub(super) fn report(size: usize) {
        if HAS_FAILED.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut limit = libc::rlimit {
            rlim_cur: libc::RLIM_INFINITY,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: fills the given structure.
        let is_known = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } == 0;
        let mut line = Line {
            bytes: [0; 200],
            len: 0,
        };
        let written = if is_known && limit.rlim_cur != libc::RLIM_INFINITY {
            writeln!(
                line,
                "tooltune: out of memory: cannot allocate {size} bytes; the address space is \
                 limited to {} bytes (ulimit -v); raise that limit",
                limit.rlim_cur
            )
        } else {
            writeln!(
                line,
                "tooltune: out of memory: cannot allocate {size} bytes; the machine has no more"
            )
        };
        if written.is_ok() {
            // SAFETY: writes the initialised bytes of the line. A closed stderr is ignored.
            let _ =
                unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len) };
        }
    }

    struct Line {
        bytes: [u8; 200],
        len: usize,
    }

    impl Write for Line {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let end = self.len + text.len();
            let target = self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?;
            target.copy_from_slice(text.as_bytes());
            self.len = end;
            Ok(())
        }
    }
}
