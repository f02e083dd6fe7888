//! Keeps worker threads spinning during a sequence of small operations.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use rayon::Yield;

use crate::route::is_cpu;

/// Runs `work` while the other threads poll for parts of it instead of sleeping.
///
/// Use it for a few milliseconds of many small operations, such as decoding a token, because waking
/// a thread takes about as long as one operation. A polling thread yields to other processes. It
/// stops polling if it finds no work for a while, so that two concurrent calls cannot wait for each
/// other. For a GPU the threads keep sleeping, because its work has no parts for them.
pub fn with_spinning_threads<R>(device: &Device, work: impl FnOnce() -> R) -> R {
    /// Longer than the time that decoding a token spends between two shared operations.
    const PATIENCE: Duration = Duration::from_micros(200);
    if !is_cpu(device) {
        return work();
    }
    let is_over = AtomicBool::new(false);
    let caller = rayon::current_thread_index();
    rayon::in_place_scope(|scope| {
        let is_over = &is_over;
        scope.spawn_broadcast(move |_, context| {
            // The calling thread could otherwise pick up the polling task itself while it waits.
            if caller == Some(context.index()) {
                return;
            }
            let mut last_work = Instant::now();
            while !is_over.load(Ordering::Acquire) && last_work.elapsed() < PATIENCE {
                if rayon::yield_now() == Some(Yield::Executed) {
                    last_work = Instant::now();
                } else {
                    thread::yield_now();
                }
            }
        });
        // Also set by a panic.
        let _end = SetOnDrop(is_over);
        work()
    })
}

/// Sets a flag when dropped, also during a panic.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use burn::tensor::Device;
    use rayon::prelude::*;

    use super::with_spinning_threads;

    #[test]
    fn spinning_threads_share_work_and_stop_at_its_end_or_panic() {
        let cpu = &Device::flex();
        let sum = |n: u64| (0..n).into_par_iter().map(|i| i * i).sum::<u64>();
        let expected = (0..1000).map(|i| i * i).sum::<u64>();
        assert_eq!(
            with_spinning_threads(cpu, || with_spinning_threads(cpu, || sum(1000))),
            expected
        );
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            with_spinning_threads(cpu, || panic!("panic of the work"))
        }));
        assert!(panicked.is_err());
        // The threads are free again, and can spin again.
        assert_eq!(sum(1000), expected);
        let nested: u64 = (0..8)
            .into_par_iter()
            .map(|_| with_spinning_threads(cpu, || sum(1000)))
            .sum();
        assert_eq!(nested, 8 * expected);
    }
}
