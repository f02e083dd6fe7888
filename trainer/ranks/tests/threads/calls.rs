//! The calls of ranks, in threads of one process.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use tooltune_ranks::preflight::{Timed, measure};
use tooltune_ranks::{Ranks, RanksError, Settings};

use super::in_threads::{run_ranks, with_ranks};
use super::support::patient;

/// Values that cover all bits and depend on rank and position.
fn values(rank: usize, n: usize) -> Vec<i64> {
    let value = |i: usize| {
        let x = (i as i64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64.cast_signed());
        x.wrapping_mul(rank as i64 * 2 + 1) ^ (x >> 29)
    };
    (0..n).map(value).collect()
}

/// One thread makes the calls, but another one may have been at the meeting.
#[test]
fn ranks_can_move_to_another_thread() {
    fn must_be_send<T: Send>() {}
    must_be_send::<Ranks>();
    must_be_send::<tooltune_ranks::Pulse>();
}

/// Invariant: The sums over all ranks equal the sums of one process, for any number of ranks.
#[test]
fn sums_are_those_of_one_process() {
    for world_size in [1, 2, 3, 8] {
        // Around the borders of frames, and several frames ahead.
        for n in [0, 1, 7, 65_535, 65_536, 65_537, 400_000] {
            let mut expected = vec![0i64; n];
            for rank in 0..world_size {
                for (sum, value) in expected.iter_mut().zip(values(rank, n)) {
                    *sum = sum.wrapping_add(value);
                }
            }
            with_ranks(world_size, move |ranks| {
                let mut sums = values(ranks.rank(), n);
                ranks.add_all(&mut sums).expect("sums");
                assert!(sums == expected, "{world_size} ranks, {n} values");
            });
        }
    }
}

#[test]
fn every_call_is_trivial_for_one_rank() {
    let mut ranks = Ranks::alone();
    assert_eq!((ranks.rank(), ranks.world_size()), (0, 1));
    assert!(ranks.is_leader());
    assert_eq!(ranks.hosts().len(), 1);
    ranks.order(b"order").expect("no followers");
    let gathered = ranks.gather(b"own").expect("alone");
    assert_eq!(gathered, Some(vec![b"own".to_vec()]));
    assert_eq!(ranks.broadcast(vec![1, 2]).expect("alone"), [1, 2]);
    let mut sums = [i64::MAX, -1];
    ranks.add_all(&mut sums).expect("alone");
    assert_eq!(sums, [i64::MAX, -1]);
    ranks.agree(&BTreeMap::new()).expect("alone");
    ranks.warn("a warning").expect("alone");
    ranks.pulse().phase("phase");
    ranks.pulse().progress();
    ranks.pulse().check().expect("alone");
    ranks.check().expect("alone");
    assert_eq!(ranks.try_receive_any().expect("alone"), None);
    for error in [
        ranks.obey().map(drop),
        ranks.receive_any().map(drop),
        ranks.receive_from(0).map(drop),
        ranks.send_to(0, b"").map(drop),
    ] {
        assert!(matches!(error, Err(RanksError::WrongRole { .. })));
    }
    ranks.end().expect("alone");
}

#[test]
fn orders_gathers_and_broadcasts_reach_all_in_order() {
    let long: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    with_ranks(4, move |ranks| {
        for round in 0..20u8 {
            let order = if ranks.is_leader() {
                ranks.order(&[round, 7]).expect("an order");
                vec![round, 7]
            } else {
                ranks.obey().expect("an order")
            };
            assert_eq!(order, [round, 7]);
            let own = vec![ranks.rank() as u8; usize::from(round)];
            let gathered = ranks.gather(&own).expect("a gather");
            if ranks.is_leader() {
                let parts: Vec<Vec<u8>> =
                    (0..4).map(|rank| vec![rank; usize::from(round)]).collect();
                assert_eq!(gathered, Some(parts));
            } else {
                assert_eq!(gathered, None);
            }
            let bytes = ranks.broadcast(own).expect("a broadcast");
            assert_eq!(bytes, vec![0; usize::from(round)]);
        }
        // Messages of several frames, which do not fit into the inbox.
        let own = if ranks.is_leader() {
            long.clone()
        } else {
            Vec::new()
        };
        assert!(ranks.broadcast(own).expect("a broadcast") == long);
        let six = [&long[..], &long].concat();
        if let Some(all) = ranks.gather(&six).expect("a gather") {
            assert!(all.len() == 4 && all.iter().all(|part| *part == six));
        }
        assert_eq!(ranks.hosts().len(), 4);
    });
}

#[test]
fn work_is_handed_out_in_portions_and_comes_back_once() {
    with_ranks(4, |ranks| {
        if ranks.is_leader() {
            let mut results = vec![None; 50];
            let mut next = 0;
            let mut busy = 0;
            for rank in 1..4 {
                ranks.send_to(rank, &[next]).expect("sent");
                next += 1;
                busy += 1;
            }
            while busy > 0 {
                let (rank, result) = match ranks.try_receive_any().expect("no failure") {
                    Some(found) => found,
                    None => ranks.receive_any().expect("a result"),
                };
                let [number, double] = result[..] else {
                    panic!("{result:?}");
                };
                assert_eq!(results[usize::from(number)].replace(double), None);
                if next < 50 {
                    ranks.send_to(rank, &[next]).expect("sent");
                    next += 1;
                } else {
                    ranks.send_to(rank, &[]).expect("sent");
                    busy -= 1;
                }
            }
            let expected: Vec<_> = (0..50).map(|n| Some(n * 2)).collect();
            assert_eq!(results, expected);
            assert!(matches!(
                ranks.send_to(4, b""),
                Err(RanksError::WrongRole { .. })
            ));
        } else {
            loop {
                let work = ranks.receive_from(0).expect("work");
                let [number] = work[..] else { break };
                ranks.send_to(0, &[number, number * 2]).expect("sent");
            }
            assert!(matches!(
                ranks.receive_from(3),
                Err(RanksError::WrongRole { .. })
            ));
        }
    });
}

#[test]
fn a_value_that_differs_is_named_on_all_ranks() {
    let errors = run_ranks(3, patient(), |mut ranks| {
        let mut values = BTreeMap::from([("weights".to_owned(), "a".to_owned())]);
        ranks.agree(&values).expect("equal");
        values.insert(
            "adapter".to_owned(),
            if ranks.rank() == 2 { "x" } else { "y" }.to_owned(),
        );
        ranks.agree(&values).expect_err("differs")
    });
    for error in errors {
        let RanksError::Differs {
            name,
            rank,
            value,
            leader,
            ..
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!((name.as_str(), rank), ("adapter", 2));
        assert_eq!((value.as_str(), leader.as_str()), ("x", "y"));
    }
}

#[test]
fn different_calls_are_an_error_on_all_ranks() {
    let errors = run_ranks(3, patient(), |mut ranks| {
        let result = match ranks.rank() {
            0 => ranks
                .broadcast(vec![1])
                .and_then(|_| ranks.obey_or_gather()),
            1 => ranks
                .broadcast(Vec::new())
                .and_then(|_| ranks.obey_or_gather()),
            _ => {
                let mut sums = [0; 3];
                ranks.add_all(&mut sums)
            }
        };
        result.expect_err("out of step").to_string()
    });
    for error in &errors {
        assert!(error.contains("out of step"), "{error}");
    }
    let lengths = run_ranks(2, patient(), |mut ranks| {
        let mut sums = vec![1; 10 + ranks.rank()];
        ranks.add_all(&mut sums).expect_err("lengths").to_string()
    });
    for error in &lengths {
        assert!(
            error.contains("length 11") && error.contains("length 10"),
            "{error}"
        );
    }
}

/// The next call of a rank that continues after a broadcast.
trait Next {
    fn obey_or_gather(&mut self) -> tooltune_ranks::Result<()>;
}

impl Next for Ranks {
    fn obey_or_gather(&mut self) -> tooltune_ranks::Result<()> {
        if self.is_leader() {
            self.gather(b"").map(drop)
        } else {
            self.gather(b"")?;
            self.obey().map(drop)
        }
    }
}

#[test]
fn a_failing_ranks_message_reaches_all_others() {
    for failing in [0, 2] {
        let errors = run_ranks(3, patient(), move |mut ranks| {
            if ranks.rank() == failing {
                ranks.fail("the disk is full\u{1b}[31m");
                return String::new();
            }
            let result = if ranks.is_leader() {
                ranks.gather(b"").map(drop)
            } else {
                ranks.obey().map(drop)
            };
            result.expect_err("the run has failed").to_string()
        });
        for (rank, error) in errors.iter().enumerate() {
            if rank != failing {
                assert!(error.contains("the disk is full?[31m"), "{rank}: {error}");
                assert!(error.contains(&format!("rank {failing} on")), "{error}");
            }
        }
    }
}

#[test]
fn a_rank_that_panics_ends_the_run() {
    let errors = run_ranks(2, patient(), |mut ranks| {
        if ranks.rank() == 1 {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _ranks = ranks;
                std::panic::resume_unwind(Box::new("stop"));
            }));
            assert!(panicked.is_err());
            return String::new();
        }
        ranks.gather(b"").expect_err("rank 1 has gone").to_string()
    });
    assert!(errors[0].contains("it panicked"), "{}", errors[0]);
}

#[test]
fn the_hook_learns_of_a_failure_while_the_rank_is_busy() {
    let errors = run_ranks(2, patient(), |mut ranks| {
        if ranks.rank() == 1 {
            drop(ranks);
            return String::new();
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        ranks.on_failure(move |error| drop(sender.send(error.to_string())));
        let pulse = ranks.pulse();
        let message = receiver.recv().expect("the hook");
        assert!(pulse.check().is_err());
        message
    });
    assert!(
        errors[0].contains("stopped without a message"),
        "{}",
        errors[0]
    );
}

#[test]
fn a_rank_that_makes_no_progress_ends_the_run() {
    let settings = Settings {
        step_seconds: 1,
        ..patient()
    };
    let errors = run_ranks(2, settings, |mut ranks| {
        ranks.pulse().phase("loading weights");
        if ranks.rank() == 1 {
            // Busy without a call until the leader has ended the run.
            while ranks.check().is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
            return ranks.check().expect_err("ended");
        }
        ranks.gather(b"").expect_err("rank 1 stalls")
    });
    let RanksError::Stalled { rank: 1, phase, .. } = &errors[0] else {
        panic!("{}", errors[0]);
    };
    assert_eq!(phase, "loading weights");
    let message = errors[1].to_string();
    assert!(message.contains("no progress"), "{message}");
}

#[test]
fn progress_keeps_a_busy_rank_alive_and_waiting_is_not_a_stall() {
    let settings = Settings {
        step_seconds: 6,
        ..patient()
    };
    let results = run_ranks(3, settings, |mut ranks| {
        // Longer than a step may take without progress, even for a follower that waits.
        if ranks.rank() == 1 {
            for _ in 0..90 {
                ranks.pulse().progress();
                thread::sleep(Duration::from_millis(100));
            }
        }
        ranks.gather(b"").expect("a gather");
        if ranks.is_leader() {
            ranks.order(b"stop").expect("an order");
        } else {
            ranks.obey().expect("an order");
        }
        ranks.end()
    });
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

#[test]
fn two_ranks_that_wait_for_each_other_do_not_wait_for_ever() {
    let settings = Settings {
        step_seconds: 1,
        ..patient()
    };
    let errors = run_ranks(2, settings, |mut ranks| {
        if ranks.is_leader() {
            ranks.receive_from(1).map(drop)
        } else {
            ranks.obey().map(drop)
        }
    });
    assert!(
        matches!(&errors[0], Err(RanksError::OutOfStep { .. })),
        "{errors:?}"
    );
    assert!(errors[1].is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// A peer of a running rank that sends arbitrary bytes ends the run with an error.
    #[test]
    fn garbage_after_the_meeting_is_an_error(bytes in prop::collection::vec(any::<u8>(), 1..100)) {
        let errors = run_ranks(2, patient(), move |mut ranks| {
            if ranks.is_leader() {
                return ranks.gather(b"").map(drop);
            }
            ranks.send_to(0, &bytes)?;
            ranks.obey().map(drop)
        });
        prop_assert!(errors.iter().all(Result::is_err));
    }
}

#[test]
fn a_preflight_measures_every_rank_and_size() {
    let sizes = [8, 1_000_000];
    let measured = run_ranks(3, patient(), move |mut ranks| {
        let own: &[usize] = if ranks.is_leader() { &sizes } else { &[] };
        let measured = measure(&mut ranks, own);
        ranks.end().expect("the end");
        measured.expect("measured")
    });
    assert!(measured[1].is_none() && measured[2].is_none());
    let measured = measured[0].as_ref().expect("the leader's measurements");
    let ranks: Vec<usize> = measured.pairs.iter().map(|pair| pair.rank).collect();
    assert_eq!(ranks, [1, 2]);
    for pair in &measured.pairs {
        assert!(pair.round_trip <= pair.longest && pair.slower_direction() > 0.0);
    }
    let bytes = |timed: &[Timed]| timed.iter().map(|timed| timed.bytes).collect::<Vec<_>>();
    assert_eq!(bytes(&measured.sums), sizes);
    // The two other ranks send a half each.
    assert_eq!(bytes(&measured.gathers), sizes);
    let slowest = measured.slowest().expect("a rank").slower_direction();
    assert!(
        measured
            .pairs
            .iter()
            .all(|pair| pair.slower_direction() >= slowest)
    );
    let longest = measured.most_distant().expect("a rank").round_trip;
    assert!(measured.pairs.iter().all(|pair| pair.round_trip <= longest));

    let mut alone = Ranks::alone();
    assert_eq!(measure(&mut alone, &sizes), Ok(None));
    let too_long = measure(&mut alone, &[usize::MAX]);
    assert!(
        matches!(too_long, Err(RanksError::TooLong { .. })),
        "{too_long:?}"
    );
}
