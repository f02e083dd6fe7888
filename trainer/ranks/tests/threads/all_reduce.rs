//! Sums by another way than the connections, here the memory that the ranks' threads share.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tooltune_ranks::{AllReduce, Ranks, RanksError};

use super::in_threads::run_ranks;
use super::support::patient;

/// The sums of one call, and how many ranks have come and gone.
#[derive(Debug, Default)]
struct Sums {
    values: Vec<i64>,
    n_arrived: usize,
    n_left: usize,
}

/// Adds in shared memory.
#[derive(Debug, Clone)]
struct SharedMemory {
    n_ranks: usize,
    sums: Arc<(Mutex<Sums>, Condvar)>,
    n_ended: Arc<AtomicUsize>,
}

impl SharedMemory {
    fn new(n_ranks: usize) -> Self {
        Self {
            n_ranks,
            sums: Arc::default(),
            n_ended: Arc::default(),
        }
    }
}

impl AllReduce for SharedMemory {
    fn add_all(&mut self, sums: &mut [i64], is_running: &dyn Fn() -> bool) -> Result<(), String> {
        let (shared, changed) = &*self.sums;
        let mut state = shared.lock().expect("no panic");
        if state.values.is_empty() {
            state.values = vec![0; sums.len()];
        }
        for (sum, value) in state.values.iter_mut().zip(&*sums) {
            *sum = sum.wrapping_add(*value);
        }
        state.n_arrived += 1;
        changed.notify_all();
        while state.n_arrived < self.n_ranks {
            let waited = changed.wait_timeout(state, Duration::from_millis(20));
            state = waited.expect("no panic").0;
            if !is_running() {
                return Err("given up".to_owned());
            }
        }
        sums.copy_from_slice(&state.values);
        state.n_left += 1;
        if state.n_left == self.n_ranks {
            *state = Sums::default();
        }
        Ok(())
    }

    fn end(self: Box<Self>, _: &dyn Fn() -> bool) -> Result<(), String> {
        self.n_ended.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
}

/// Fails in a call in which all other ranks wait.
#[derive(Debug)]
struct Broken;

impl AllReduce for Broken {
    fn add_all(&mut self, _: &mut [i64], _: &dyn Fn() -> bool) -> Result<(), String> {
        Err("the network is down".to_owned())
    }

    fn end(self: Box<Self>, _: &dyn Fn() -> bool) -> Result<(), String> {
        Err("the network is down".to_owned())
    }
}

/// Invariant: Sums by another library equal those over the connections.
#[test]
fn sums_by_another_way_are_those_of_the_connections() {
    let shared = SharedMemory::new(3);
    let in_ranks = shared.clone();
    run_ranks(3, patient(), move |mut ranks| {
        let own = |step: i64| vec![step * (ranks.rank() as i64 + 1) - 7; 1000];
        let values: Vec<Vec<i64>> = (0..5).map(own).collect();
        let add = |ranks: &mut Ranks| {
            let mut sums = values.clone();
            for sums in &mut sums {
                ranks.add_all(sums).expect("sums");
            }
            sums
        };
        let over_connections = add(&mut ranks);
        ranks.add_by(Box::new(in_ranks.clone()));
        // The door between two calls separates them.
        assert_eq!(add(&mut ranks), over_connections);
        ranks.end().expect("the end");
    });
    assert_eq!(shared.n_ended.load(Ordering::Acquire), 3);
}

#[test]
fn a_rank_that_fails_inside_a_sum_frees_the_others() {
    let shared = SharedMemory::new(3);
    let started = Instant::now();
    let errors = run_ranks(3, patient(), move |mut ranks| {
        match ranks.rank() {
            2 => ranks.add_by(Box::new(Broken)),
            _ => ranks.add_by(Box::new(shared.clone())),
        }
        ranks.add_all(&mut [1, 2]).expect_err("rank 2 has failed")
    });
    for error in &errors {
        assert!(error.to_string().contains("the network is down"), "{error}");
    }
    assert!(matches!(errors[2], RanksError::AllReduce { .. }));
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[test]
fn nobody_begins_a_sum_of_another_length() {
    let shared = SharedMemory::new(2);
    let in_ranks = shared.clone();
    let errors = run_ranks(2, patient(), move |mut ranks| {
        ranks.add_by(Box::new(in_ranks.clone()));
        let mut sums = vec![1; 10 + ranks.rank()];
        ranks.add_all(&mut sums).expect_err("other lengths")
    });
    assert!(
        errors[0].to_string().contains("sums of length 11"),
        "{}",
        errors[0]
    );
    assert_eq!(shared.sums.0.lock().expect("no panic").n_arrived, 0);
}
