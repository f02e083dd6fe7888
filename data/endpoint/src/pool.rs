//! Runs the same work for many items in parallel, with results in item order.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Maximum threads, regardless of the requested number; each mostly waits for a server.
pub const MAX_CONCURRENCY: usize = 1_024;

/// How often the caller's `watch` is called while no item finishes.
const TICK: Duration = Duration::from_millis(100);

/// Progress of the work.
#[derive(Debug, Clone, Copy)]
pub struct ItemEvent<'a, R> {
    /// Number of finished items.
    pub n_done: usize,
    /// The result that has just arrived, if any.
    pub latest: Option<&'a R>,
}

/// Runs `work` for each item. Returns the results; `None` for items that were not started before
/// the work was stopped.
///
/// `watch` is called in the caller's thread after each result and at least ten times a second. Once
/// it returns false, no further work is started, and the flag passed to `work` is set. `work` may
/// also set the flag itself.
pub fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    concurrency: usize,
    watch: &mut dyn FnMut(ItemEvent<'_, R>) -> bool,
    work: impl Fn(&T, &AtomicBool) -> R + Sync,
) -> Vec<Option<R>> {
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let n_workers = concurrency.clamp(1, MAX_CONCURRENCY).min(items.len());
    let (next_item, is_stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
    // A worker starts its next item only after the caller has processed its last result. If a few
    // results show that the rest is pointless, at most `n_workers` further items are started. If
    // the process dies, at most `n_workers` unsaved results are lost.
    let (sender, receiver) = sync_channel(0);
    std::thread::scope(|scope| {
        let mut n_started = 0;
        for _ in 0..n_workers {
            let sender = sender.clone();
            let (next_item, is_stopped, work) = (&next_item, &is_stopped, &work);
            let started = std::thread::Builder::new().spawn_scoped(scope, move || {
                while !is_stopped.load(Ordering::Relaxed) {
                    let idx = next_item.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(idx) else { break };
                    let (done_with, is_done_with) = sync_channel(1);
                    let result = work(item, is_stopped);
                    if sender.send((idx, result, done_with)).is_err()
                        || is_done_with.recv().is_err()
                    {
                        break;
                    }
                }
            });
            // If the system provides fewer threads, they do the same work.
            if started.is_err() {
                break;
            }
            n_started += 1;
        }
        if n_started == 0 {
            for (idx, item) in items.iter().enumerate() {
                if is_stopped.load(Ordering::Relaxed) {
                    break;
                }
                let latest = Some(&*results[idx].insert(work(item, &is_stopped)));
                let n_done = idx + 1;
                if !watch(ItemEvent { n_done, latest }) {
                    break;
                }
            }
            return;
        }
        drop(sender);
        let mut n_done = 0;
        let mut is_watched = true;
        loop {
            let (latest, done_with) = match receiver.recv_timeout(TICK) {
                Ok((idx, result, done_with)) => {
                    n_done += 1;
                    (Some(&*results[idx].insert(result)), Some(done_with))
                }
                Err(RecvTimeoutError::Timeout) => (None, None),
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if is_watched && !watch(ItemEvent { n_done, latest }) {
                is_watched = false;
                is_stopped.store(true, Ordering::Relaxed);
            }
            if let Some(done_with) = done_with {
                // The worker waits for this message before its next item.
                let _ = done_with.send(());
            }
        }
    });
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_the_order_of_the_items() {
        let items: Vec<u64> = (0..40).collect();
        let mut reported = Vec::new();
        let mut watch = |event: ItemEvent<'_, u64>| {
            reported.extend(event.latest.map(|_| event.n_done));
            true
        };
        // Later items finish first.
        let results = in_parallel(&items, 8, &mut watch, |item, _| {
            std::thread::sleep(Duration::from_millis(40 - item));
            item * item
        });
        let expected: Vec<Option<u64>> = items.iter().map(|item| Some(item * item)).collect();
        assert_eq!(results, expected);
        assert_eq!(reported, (1..=40).collect::<Vec<usize>>());
    }

    #[test]
    fn concurrency_is_limited() {
        let (n_running, max_running) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = |_: &usize, _: &AtomicBool| {
            let n = n_running.fetch_add(1, Ordering::SeqCst) + 1;
            max_running.fetch_max(n, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(5));
            n_running.fetch_sub(1, Ordering::SeqCst);
        };
        let items: Vec<usize> = (0..20).collect();
        assert_eq!(in_parallel(&items, 3, &mut |_| true, work).len(), 20);
        assert_eq!(max_running.load(Ordering::SeqCst), 3);
        assert!(in_parallel(&[], 3, &mut |_| true, work).is_empty());
        assert_eq!(in_parallel(&items[..2], 0, &mut |_| true, work).len(), 2);
    }

    /// Invariant: A killed pipeline loses at most the requests in flight.
    #[test]
    fn a_worker_waits_until_its_last_result_is_processed() {
        let (n_begun, n_kept) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let items: Vec<usize> = (0..60).collect();
        let mut max_running = 0;
        let mut watch = |event: ItemEvent<'_, ()>| {
            if event.latest.is_some() {
                std::thread::sleep(Duration::from_millis(2));
                max_running =
                    max_running.max(n_begun.load(Ordering::SeqCst) - n_kept.load(Ordering::SeqCst));
                n_kept.fetch_add(1, Ordering::SeqCst);
            }
            true
        };
        in_parallel(&items, 4, &mut watch, |_, _| {
            n_begun.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(max_running, 4);
    }

    #[test]
    fn stopping_prevents_further_work() {
        let items: Vec<usize> = (0..1000).collect();
        let mut watch = |event: ItemEvent<'_, usize>| event.n_done < 3;
        let results = in_parallel(&items, 2, &mut watch, |item, is_stopped| {
            let mut n_slices = 0;
            while *item > 2 && n_slices < 400 && !is_stopped.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(10));
                n_slices += 1;
            }
            n_slices
        });
        let n_done = results.iter().flatten().count();
        assert!((3..6).contains(&n_done), "{n_done}");
        assert!(results.iter().flatten().all(|n_slices| *n_slices < 400));
    }

    #[test]
    fn the_result_that_stops_all_work_is_still_reported() {
        let items: Vec<usize> = (0..1000).collect();
        let mut reported = Vec::new();
        let mut watch = |event: ItemEvent<'_, usize>| {
            reported.extend(event.latest.copied());
            true
        };
        let results = in_parallel(&items, 1, &mut watch, |item, is_stopped| {
            is_stopped.store(*item == 3, Ordering::Relaxed);
            *item
        });
        let done: Vec<usize> = results.into_iter().flatten().collect();
        assert_eq!(done, [0, 1, 2, 3]);
        assert_eq!(reported, done);
    }
}
