//! What becomes of large blocks that are freed: the operating system has them back.
//!
//! glibc maps blocks of their own pages from 128 KiB on, but raises that size to the largest such
//! block that was freed, up to 32 MiB. Everything below it lies in a heap that shrinks at its end
//! alone: steps of many lengths, evaluations and saves left up to a third of a run's memory in gaps
//! between blocks in use. Other C libraries are left as they are.
//!
//! A block that is refused ends most programs by a signal; here they say which limit is behind it.

use std::alloc::{GlobalAlloc, Layout, System};

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

/// The heap of the system, which says what it refuses and why.
#[derive(Debug, Clone, Copy, Default)]
pub struct TellingHeap;

// SAFETY: every block comes from `System` and goes back to it, with the layout that it came with;
// nothing else is done but to look whether a block was refused.
unsafe impl GlobalAlloc for TellingHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this very function.
        told(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block is of `System`, see above.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this very function.
        told(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the block is of `System`, see above.
        told(unsafe { System.realloc(block, layout, size) }, size)
    }
}

#[inline]
fn told(block: *mut u8, size: usize) -> *mut u8 {
    if block.is_null() {
        refused::tell(size);
    }
    block
}

/// Has a program that ends because a block was refused end with this status; for the first lines of
/// a program.
pub fn end_with(status: u8) {
    refused::end_with(status);
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
mod refused {
    pub(super) fn tell(_: usize) {}

    pub(super) fn end_with(_: u8) {}
}

/// What is done here must take no memory of the heap.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod refused {
    use std::fmt::{self, Write};
    use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

    /// The status to end with once a block was refused; 0 to leave the end to the signal.
    static STATUS: AtomicI32 = AtomicI32::new(0);
    static IS_REFUSED: AtomicBool = AtomicBool::new(false);

    pub(super) fn end_with(status: u8) {
        STATUS.store(i32::from(status), Ordering::Relaxed);
        let handler: extern "C" fn(libc::c_int) = aborted;
        // SAFETY: the handler does what is allowed in one, and its type is that of handlers.
        unsafe { libc::signal(libc::SIGABRT, handler as libc::sighandler_t) };
    }

    /// The standard library aborts after a block was refused; what aborts for another reason continues
    /// to do so when this returns.
    extern "C" fn aborted(_: libc::c_int) {
        if IS_REFUSED.load(Ordering::Relaxed) {
            // SAFETY: ends the process without anything that a handler must not do.
            unsafe { libc::_exit(STATUS.load(Ordering::Relaxed)) };
        }
    }

    /// Says once what was refused; the caller decides whether it can do without.
    pub(super) fn tell(size: usize) {
        if IS_REFUSED.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut limit = libc::rlimit {
            rlim_cur: libc::RLIM_INFINITY,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: fills the structure that it is given.
        let found = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } == 0;
        let mut line = Line {
            bytes: [0; 200],
            len: 0,
        };
        let written = if found && limit.rlim_cur != libc::RLIM_INFINITY {
            writeln!(
                line,
                "tooltune: {size} bytes of memory were refused; the address space may have at most \
                 {} bytes (ulimit -v); raise that limit",
                limit.rlim_cur
            )
        } else {
            writeln!(
                line,
                "tooltune: {size} bytes of memory were refused; the machine has no more"
            )
        };
        if written.is_ok() {
            // SAFETY: writes the bytes that the line has. A terminal that is gone is no fault here.
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
            let place = self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?;
            place.copy_from_slice(text.as_bytes());
            self.len = end;
            Ok(())
        }
    }
}
