//! Processes items in several threads and returns the results in item order.
//!
//! The number of items in flight is bounded, so memory use does not depend on the number of items.

use std::any::Any;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Items per thread that are started before waiting for results.
const IN_FLIGHT_PER_THREAD: usize = 4;

/// Processes every item in one of `n_threads` threads, each with its own worker, and passes each
/// result to `take` in item order. Items are produced on the calling thread.
///
/// # Errors
///
/// - the error of `take`; items in flight are then finished and discarded
///
/// # Panics
///
/// - if a worker panics, with the worker's message
pub fn process_in_order<T: Send, U: Send, W: FnMut(T) -> U, E>(
    items: impl Iterator<Item = T>,
    n_threads: NonZeroUsize,
    worker: impl Fn() -> W + Sync,
    mut take: impl FnMut(U) -> Result<(), E>,
) -> Result<(), E> {
    if n_threads.get() == 1 {
        let mut work = worker();
        return items.map(&mut work).try_for_each(take);
    }
    let (to_workers, items_receiver) = channel::<(usize, T)>();
    let items_receiver = Mutex::new(items_receiver);
    let (items_receiver, worker) = (&items_receiver, &worker);
    thread::scope(move |scope| {
        let (done, from_workers) = channel();
        for _ in 0..n_threads.get() {
            let done = done.clone();
            scope.spawn(move || {
                let mut work = worker();
                while let Some((number, item)) = next(items_receiver) {
                    // Catch panics: the caller would wait forever for the result.
                    let result = catch_unwind(AssertUnwindSafe(|| work(item)));
                    let is_panic = result.is_err();
                    if done.send((number, result)).is_err() || is_panic {
                        break;
                    }
                }
            });
        }
        drop(done);
        let mut results = Results {
            from_workers,
            waiting: BTreeMap::new(),
            next: 0,
        };
        let max_in_flight = n_threads.get() * IN_FLIGHT_PER_THREAD;
        let mut n_given = 0;
        for item in items {
            while n_given - results.next >= max_in_flight {
                take(results.wait())?;
            }
            // A worker's channel closes early only on a panic, which is reported when its result is
            // read.
            let _ = to_workers.send((n_given, item));
            n_given += 1;
        }
        drop(to_workers);
        while results.next < n_given {
            take(results.wait())?;
        }
        Ok(())
    })
}

fn next<T>(receiver: &Mutex<Receiver<T>>) -> Option<T> {
    let receiver = receiver.lock().unwrap_or_else(PoisonError::into_inner);
    receiver.recv().ok()
}

/// The result of a worker, or its panic payload.
type Outcome<U> = Result<U, Box<dyn Any + Send>>;

struct Results<U> {
    from_workers: Receiver<(usize, Outcome<U>)>,
    /// Results received out of order.
    waiting: BTreeMap<usize, Outcome<U>>,
    next: usize,
}

impl<U> Results<U> {
    /// The next result in item order.
    fn wait(&mut self) -> U {
        loop {
            if let Some(result) = self.waiting.remove(&self.next) {
                self.next += 1;
                return result.unwrap_or_else(|panic| resume_unwind(panic));
            }
            match self.from_workers.recv() {
                Ok((number, result)) => drop(self.waiting.insert(number, result)),
                Err(_) => panic!("all workers ended before their items were processed"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    fn threads(n: usize) -> NonZeroUsize {
        NonZeroUsize::new(n).expect("not 0")
    }

    #[test]
    fn results_keep_the_order_of_their_items_and_few_are_in_flight() {
        for n in [1, 2, 5] {
            let under_way = AtomicUsize::new(0);
            let items = (0..500_usize).inspect(|_| {
                let n_before = under_way.fetch_add(1, Ordering::Relaxed);
                assert!(
                    n_before <= n * IN_FLIGHT_PER_THREAD,
                    "{n_before} items are in flight"
                );
            });
            let mut results = Vec::new();
            let work = |item: usize| {
                if item.is_multiple_of(97) {
                    thread::sleep(Duration::from_millis(5));
                }
                item * 2
            };
            let take = |result| {
                under_way.fetch_sub(1, Ordering::Relaxed);
                results.push(result);
                Ok::<(), Infallible>(())
            };
            let Ok(()) = process_in_order(items, threads(n), || work, take);
            assert_eq!(results, (0..500).map(|item| item * 2).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_error_of_the_consumer_stops_the_workers() {
        let take = |result: u64| if result == 40 { Err(result) } else { Ok(()) };
        for n in [1, 3] {
            let items = 0_u64..;
            assert_eq!(
                process_in_order(items, threads(n), || |item| item, take),
                Err(40)
            );
        }
    }

    #[test]
    fn a_panic_of_a_worker_reaches_the_caller() {
        for n in [1, 3] {
            let work = |item: usize| assert_ne!(item, 30, "no thirty");
            let run = || process_in_order(0..100, threads(n), || work, Ok::<(), Infallible>);
            let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("a panic");
            let message = panic.downcast_ref::<String>().expect("a text");
            assert!(message.contains("no thirty"), "{message}");
        }
    }
}
