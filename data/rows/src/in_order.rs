//! Work on many items in several threads, with its results in the order of the items.
//!
//! What is under way has a bound, so that memory does not grow with the number of items.

use std::any::Any;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Items of each thread that are begun before results are waited for.
const AHEAD: usize = 4;

/// Gives every item to a worker of one of `n_threads` threads, each with a worker of its own, and
/// every result to `take`, in the order of the items. Items are asked for on the calling thread.
///
/// # Errors
///
/// - what `take` says; what is under way then is finished and forgotten
///
/// # Panics
///
/// - a worker does, with what it says
pub fn in_order<T: Send, U: Send, W: FnMut(T) -> U, E>(
    items: impl Iterator<Item = T>,
    n_threads: NonZeroUsize,
    worker: impl Fn() -> W + Sync,
    mut take: impl FnMut(U) -> Result<(), E>,
) -> Result<(), E> {
    if n_threads.get() == 1 {
        let mut work = worker();
        return items.map(&mut work).try_for_each(take);
    }
    let (to_workers, given) = channel::<(usize, T)>();
    let given = Mutex::new(given);
    let (given, worker) = (&given, &worker);
    thread::scope(move |scope| {
        let (done, from_workers) = channel();
        for _ in 0..n_threads.get() {
            let done = done.clone();
            scope.spawn(move || {
                let mut work = worker();
                while let Some((number, item)) = next(given) {
                    // A panic would leave a result out that is waited for.
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
        let most = n_threads.get() * AHEAD;
        let mut n_given = 0;
        for item in items {
            while n_given - results.next >= most {
                take(results.wait())?;
            }
            // Workers end before their channel only by a panic, which the wait for a result tells.
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

fn next<T>(given: &Mutex<Receiver<T>>) -> Option<T> {
    let given = given.lock().unwrap_or_else(PoisonError::into_inner);
    given.recv().ok()
}

/// What a worker made of an item, or with what it panicked.
type Outcome<U> = Result<U, Box<dyn Any + Send>>;

struct Results<U> {
    from_workers: Receiver<(usize, Outcome<U>)>,
    /// Results that came before their turn.
    waiting: BTreeMap<usize, Outcome<U>>,
    next: usize,
}

impl<U> Results<U> {
    /// The next result in order.
    fn wait(&mut self) -> U {
        loop {
            if let Some(result) = self.waiting.remove(&self.next) {
                self.next += 1;
                return result.unwrap_or_else(|panic| resume_unwind(panic));
            }
            match self.from_workers.recv() {
                Ok((number, result)) => drop(self.waiting.insert(number, result)),
                Err(_) => panic!("every worker has ended before its work"),
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
    fn results_come_in_the_order_of_their_items_and_few_are_under_way() {
        for n in [1, 2, 5] {
            let under_way = AtomicUsize::new(0);
            let items = (0..500_usize).inspect(|_| {
                let before = under_way.fetch_add(1, Ordering::Relaxed);
                assert!(before <= n * AHEAD, "{before} items are under way");
            });
            let mut found = Vec::new();
            let work = |item: usize| {
                if item.is_multiple_of(97) {
                    thread::sleep(Duration::from_millis(5));
                }
                item * 2
            };
            let take = |result| {
                under_way.fetch_sub(1, Ordering::Relaxed);
                found.push(result);
                Ok::<(), Infallible>(())
            };
            let Ok(()) = in_order(items, threads(n), || work, take);
            assert_eq!(found, (0..500).map(|item| item * 2).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_error_of_the_taker_ends_the_work() {
        let take = |result: u64| if result == 40 { Err(result) } else { Ok(()) };
        for n in [1, 3] {
            let items = 0_u64..;
            assert_eq!(in_order(items, threads(n), || |item| item, take), Err(40));
        }
    }

    #[test]
    fn a_panic_of_a_worker_reaches_the_caller() {
        for n in [1, 3] {
            let work = |item: usize| assert_ne!(item, 30, "no thirty");
            let run = || in_order(0..100, threads(n), || work, Ok::<(), Infallible>);
            let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("a panic");
            let said = panic.downcast_ref::<String>().expect("a text");
            assert!(said.contains("no thirty"), "{said}");
        }
    }
}
