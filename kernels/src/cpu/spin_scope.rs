//! Threads that stay awake for a run of small operations.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use rayon::Yield;

use crate::route::is_cpu;

/// Runs `work` while the other threads look for parts of it without falling asleep in between.
///
/// For a few milliseconds of many small operations, as a decoded token is: waking a thread takes
/// about as long as one of them. A thread that finds nothing for a while stops looking, so that no
/// two pieces of work can wait for each other, and gives way to other processes before. Work of
/// another device than the CPU has no parts for them, and they are left alone.
pub fn wide_awake<R>(device: &Device, work: impl FnOnce() -> R) -> R {
    /// Longer than what a token computes between two operations that are shared.
    const PATIENCE: Duration = Duration::from_micros(200);
    if !is_cpu(device) {
        return work();
    }
    let is_over = AtomicBool::new(false);
    let caller = rayon::current_thread_index();
    rayon::in_place_scope(|scope| {
        let is_over = &is_over;
        scope.spawn_broadcast(move |_, context| {
            // The caller would meet its share while it waits for others.
            if caller == Some(context.index()) {
                return;
            }
            let mut found = Instant::now();
            while !is_over.load(Ordering::Acquire) && found.elapsed() < PATIENCE {
                if rayon::yield_now() == Some(Yield::Executed) {
                    found = Instant::now();
                } else {
                    thread::yield_now();
                }
            }
        });
        // Set by a panic, too.
        let _end = SetOnDrop(is_over);
        work()
    })
}

/// Sets a flag at its end, however that comes.
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

    use super::wide_awake;

    #[test]
    fn threads_kept_awake_share_the_work_and_end_with_it_even_by_a_panic() {
        let cpu = &Device::flex();
        let sum = |n: u64| (0..n).into_par_iter().map(|i| i * i).sum::<u64>();
        let expected = (0..1000).map(|i| i * i).sum::<u64>();
        assert_eq!(wide_awake(cpu, || wide_awake(cpu, || sum(1000))), expected);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            wide_awake(cpu, || panic!("as work may"))
        }));
        assert!(panicked.is_err());
        // The threads are free again, and may keep each other awake.
        assert_eq!(sum(1000), expected);
        let nested: u64 = (0..8)
            .into_par_iter()
            .map(|_| wide_awake(cpu, || sum(1000)))
            .sum();
        assert_eq!(nested, 8 * expected);
    }
}
