//! The same work for many items, several at once, in the order of the items.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Threads at most, however many are asked for; each waits for a server and does little else.
pub const MAX_CONCURRENCY: usize = 1_024;

/// How often the watching caller is asked where nothing gets done.
const TICK: Duration = Duration::from_millis(100);

/// How far the work is.
#[derive(Debug, Clone, Copy)]
pub struct Watched<'a, R> {
    /// Items that are done.
    pub n_done: usize,
    /// The result that has just come, if any has.
    pub latest: Option<&'a R>,
}

/// Works on the items; the result of each, or nothing where the work was stopped before it.
///
/// `watch` is called in the caller's thread after each result and at least ten times a second,
/// until it returns false: then no work is begun, and `work` sees its flag set. `work` may set the
/// flag itself.
pub fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    concurrency: usize,
    watch: &mut dyn FnMut(Watched<'_, R>) -> bool,
    work: impl Fn(&T, &AtomicBool) -> R + Sync,
) -> Vec<Option<R>> {
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let n_workers = concurrency.clamp(1, MAX_CONCURRENCY).min(items.len());
    let (next, is_stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
    // A worker begins nothing before the caller is done with its last result: where a few results say
    // that the rest is in vain, no more than `n_workers` further ones are begun, and where the process
    // dies, no more than `n_workers` are lost that the caller has not kept.
    let (sender, receiver) = sync_channel(0);
    std::thread::scope(|scope| {
        let mut n_started = 0;
        for _ in 0..n_workers {
            let sender = sender.clone();
            let (next, is_stopped, work) = (&next, &is_stopped, &work);
            let started = std::thread::Builder::new().spawn_scoped(scope, move || {
                while !is_stopped.load(Ordering::Relaxed) {
                    let idx = next.fetch_add(1, Ordering::Relaxed);
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
            // Where the system gives fewer threads, fewer do the same work.
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
                if !watch(Watched { n_done, latest }) {
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
            if is_watched && !watch(Watched { n_done, latest }) {
                is_watched = false;
                is_stopped.store(true, Ordering::Relaxed);
            }
            if let Some(done_with) = done_with {
                // The worker waits for it.
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
        let mut seen = Vec::new();
        let mut watch = |watched: Watched<'_, u64>| {
            seen.extend(watched.latest.map(|_| watched.n_done));
            true
        };
        // Later items are done first.
        let results = in_parallel(&items, 8, &mut watch, |item, _| {
            std::thread::sleep(Duration::from_millis(40 - item));
            item * item
        });
        let expected: Vec<Option<u64>> = items.iter().map(|item| Some(item * item)).collect();
        assert_eq!(results, expected);
        assert_eq!(seen, (1..=40).collect::<Vec<usize>>());
    }

    #[test]
    fn no_more_work_at_once_than_asked_for() {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = |_: &usize, _: &AtomicBool| {
            let n = now.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(n, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(5));
            now.fetch_sub(1, Ordering::SeqCst);
        };
        let items: Vec<usize> = (0..20).collect();
        assert_eq!(in_parallel(&items, 3, &mut |_| true, work).len(), 20);
        assert_eq!(most.load(Ordering::SeqCst), 3);
        assert!(in_parallel(&[], 3, &mut |_| true, work).is_empty());
        assert_eq!(in_parallel(&items[..2], 0, &mut |_| true, work).len(), 2);
    }

    #[test]
    fn a_worker_begins_nothing_before_its_last_result_is_kept() {
        let (n_begun, n_kept) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let items: Vec<usize> = (0..60).collect();
        let mut most = 0;
        let mut watch = |watched: Watched<'_, ()>| {
            if watched.latest.is_some() {
                std::thread::sleep(Duration::from_millis(2));
                most = most.max(n_begun.load(Ordering::SeqCst) - n_kept.load(Ordering::SeqCst));
                n_kept.fetch_add(1, Ordering::SeqCst);
            }
            true
        };
        in_parallel(&items, 4, &mut watch, |_, _| {
            n_begun.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(most, 4);
    }

    #[test]
    fn stopped_work_ends_and_the_rest_is_not_begun() {
        let items: Vec<usize> = (0..1000).collect();
        let mut watch = |watched: Watched<'_, usize>| watched.n_done < 3;
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
    fn work_that_ends_all_work_is_the_last_and_is_watched() {
        let items: Vec<usize> = (0..1000).collect();
        let mut seen = Vec::new();
        let mut watch = |watched: Watched<'_, usize>| {
            seen.extend(watched.latest.copied());
            true
        };
        let results = in_parallel(&items, 1, &mut watch, |item, is_stopped| {
            is_stopped.store(*item == 3, Ordering::Relaxed);
            *item
        });
        let done: Vec<usize> = results.into_iter().flatten().collect();
        assert_eq!(done, [0, 1, 2, 3]);
        assert_eq!(seen, done);
    }
}
