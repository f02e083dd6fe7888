//! Ranks in threads of one process: calls, sums, and meetings with strangers and wrong ranks.

mod support;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use support::{free_ports, identity, launch, patient, run_ranks, with_ranks};
use tooltune_ranks::{Identity, Launch, Ranks, RanksError, Settings, Token};

/// Values that cover all bits and depend on rank and position.
fn values(rank: usize, n: usize) -> Vec<i64> {
    let value = |i: usize| {
        let x = (i as i64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64.cast_signed());
        x.wrapping_mul(rank as i64 * 2 + 1) ^ (x >> 29)
    };
    (0..n).map(value).collect()
}

/// Invariant: Sums of ranks are those of one process, whatever the number of ranks.
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
    ranks.order(b"order").expect("nobody obeys");
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
        step_seconds: 3,
        ..patient()
    };
    let results = run_ranks(3, settings, |mut ranks| {
        // Longer than a step may take without progress, even for a follower that waits.
        if ranks.rank() == 1 {
            for _ in 0..130 {
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

fn meet_as(launch: &Launch, identity: &Identity, settings: &Settings) -> Result<(), RanksError> {
    Ranks::meet(launch, identity, None, settings).map(|ranks| ranks.fail("the test is over"))
}

/// Changes to a follower's hello, with parts of the error.
type WrongHello = (fn(&mut Launch, &mut Identity), [&'static str; 2]);

/// Invariant: A process that does not belong to a run is refused by name.
#[test]
fn every_wrong_hello_is_refused_by_name() {
    let wrong: [WrongHello; 8] = [
        (
            |_, identity| identity.version = "0.0.9".to_owned(),
            ["program version differs", "has 0.0.9, the leader has 0.1.0"],
        ),
        (
            |launch, _| launch.world_size = 3,
            ["world size differs", "has 3, the leader has 2"],
        ),
        (
            |launch, _| {
                launch.rank = 7;
            },
            ["has rank 7", "ranks 1 to 1"],
        ),
        (
            |_, identity| {
                identity.digests.insert("config".to_owned(), "b".to_owned());
            },
            ["config differs", "has b, the leader has a"],
        ),
        (
            |_, identity| {
                identity.digests.remove("weights");
            },
            ["weights differs", "has none, the leader has w"],
        ),
        (
            |_, identity| {
                identity
                    .digests
                    .insert("device".to_owned(), "H100".to_owned());
            },
            ["device differs", "has H100, the leader has none"],
        ),
        (
            |_, identity| {
                identity.unique.insert("GPU".to_owned(), "gpu 0".to_owned());
            },
            ["ranks 1 and 0", "both have GPU gpu 0"],
        ),
        (
            |_, identity| identity.version = "\u{1b}[2J\n".to_owned(),
            ["program version differs", "has ?[2J?"],
        ),
    ];
    for (change, expected) in wrong {
        let mut launches = [launch(0, 2), launch(1, 2)];
        launches[1].leader = launches[0].leader.clone();
        let mut identities = [identity(0), identity(1)];
        change(&mut launches[1], &mut identities[1]);
        let [leader, follower] = [0, 1].map(|rank| {
            let (launch, identity) = (launches[rank].clone(), identities[rank].clone());
            thread::spawn(move || meet_as(&launch, &identity, &patient()))
        });
        let leader = leader.join().expect("no panic").expect_err("refused");
        let follower = follower.join().expect("no panic").expect_err("refused");
        for part in expected {
            assert!(leader.to_string().contains(part), "{leader}");
            assert!(follower.to_string().contains(part), "{follower}");
        }
        assert!(follower.to_string().contains("refused this rank"));
    }
}

#[test]
fn a_second_process_with_the_same_rank_is_refused() {
    let leader_launch = launch(0, 3);
    let mut follower = launch(1, 3);
    follower.leader = leader_launch.leader.clone();
    let leader = thread::spawn(move || meet_as(&leader_launch, &identity(0), &patient()));
    let followers = [0, 1].map(|i| {
        let follower = follower.clone();
        thread::spawn(move || meet_as(&follower, &identity(i + 1), &patient()))
    });
    let error = leader.join().expect("no panic").expect_err("a duplicate");
    assert!(
        matches!(error, RanksError::DuplicateRank { rank: 1, .. }),
        "{error}"
    );
    for follower in followers {
        let error = follower.join().expect("no panic").expect_err("a duplicate");
        assert!(
            error.to_string().contains("two processes have rank 1"),
            "{error}"
        );
    }
}

#[test]
fn a_wrong_token_or_run_does_not_disturb_the_meeting() {
    let settings = Settings {
        meeting_seconds: 4,
        ..patient()
    };
    let leader_launch = launch(0, 2);
    let right = Launch {
        rank: 1,
        local_rank: 1,
        ..leader_launch.clone()
    };
    let leader = thread::spawn({
        let leader_launch = leader_launch.clone();
        move || {
            let mut ranks = Ranks::meet(&leader_launch, &identity(0), None, &patient())?;
            ranks.broadcast(vec![5])?;
            ranks.end()
        }
    });
    let token = Launch {
        token: Some(Token::new("another".to_owned())),
        ..right.clone()
    };
    let error = meet_as(&token, &identity(1), &settings).expect_err("a wrong token");
    assert!(error.to_string().contains("the token differs"), "{error}");
    let no_token = Launch {
        token: None,
        ..right.clone()
    };
    assert!(meet_as(&no_token, &identity(1), &settings).is_err());
    let run = Launch {
        run_id: "another run".to_owned(),
        ..right.clone()
    };
    // It may belong to another leader on the next port, so it tries until its deadline.
    let error = meet_as(&run, &identity(1), &settings).expect_err("another run");
    assert!(matches!(error, RanksError::NoLeader { .. }), "{error}");
    assert!(error.to_string().contains("leader of run"), "{error}");
    let mut ranks = Ranks::meet(&right, &identity(1), None, &patient()).expect("the right one");
    assert_eq!(ranks.broadcast(Vec::new()).expect("a broadcast"), [5]);
    ranks.end().expect("the end");
    leader.join().expect("no panic").expect("the end");
}

#[test]
fn missing_ranks_are_named_and_those_present_are_told() {
    let settings = Settings {
        meeting_seconds: 2,
        ..patient()
    };
    let leader_launch = launch(0, 5);
    let follower = Launch {
        rank: 3,
        local_rank: 3,
        ..leader_launch.clone()
    };
    let leader = thread::spawn({
        let settings = settings.clone();
        move || meet_as(&leader_launch, &identity(0), &settings)
    });
    let follower = meet_as(&follower, &identity(3), &patient()).expect_err("others are missing");
    let leader = leader.join().expect("no panic").expect_err("missing");
    for error in [leader, follower] {
        let error = error.to_string();
        assert!(error.contains("ranks 1 to 2, 4 did not connect"), "{error}");
    }
}

#[test]
fn a_follower_without_a_leader_ends_at_its_deadline() {
    let settings = Settings {
        meeting_seconds: 1,
        ..patient()
    };
    let follower = launch(1, 2);
    let error = meet_as(&follower, &identity(1), &settings).expect_err("no leader");
    assert!(matches!(error, RanksError::NoLeader { .. }), "{error}");
}

/// Invariant: Connections that do not belong to a run are dropped without disturbing its meeting.
#[test]
fn garbage_on_the_port_does_not_disturb_the_meeting() {
    let base = free_ports();
    // Something else has the first port, as torchrun's agent may.
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, base + 1));
    let mut leader_launch = launch(0, 2);
    leader_launch.leader.as_mut().expect("an address").port = base;
    let follower = Launch {
        rank: 1,
        local_rank: 1,
        ..leader_launch.clone()
    };
    let leader = thread::spawn(move || {
        let mut ranks = Ranks::meet(&leader_launch, &identity(0), None, &patient())?;
        ranks.broadcast(vec![9])?;
        ranks.end()
    });
    let connect = || loop {
        let open = (base + 1..=base + 8).find_map(|port| {
            let is_ours = taken.is_ok() && port == base + 1;
            (!is_ours).then(|| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok())?
        });
        match open {
            Some(stream) => return stream,
            None => thread::sleep(Duration::from_millis(10)),
        }
    };
    // Open and silent, until the end of the test.
    let silent = connect();
    let garbage: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0; 100],
        &[2, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0],
        &[2, 0, 0, 0, 3, 0, 0, 0, 1, 2, 3, 4, b'x', b'y', b'z'],
        &[255; 70_000],
        &[],
    ];
    for bytes in garbage {
        let mut stream = connect();
        // The leader may close before everything is written.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() < 1000);
    }
    let mut ranks = Ranks::meet(&follower, &identity(1), None, &patient()).expect("the meeting");
    assert_eq!(ranks.broadcast(Vec::new()).expect("a broadcast"), [9]);
    ranks.end().expect("the end");
    leader.join().expect("no panic").expect("the end");
    drop(silent);
}

#[test]
fn ranks_meet_by_a_file_although_an_old_one_is_there() {
    let dir = tempfile::tempdir().expect("a folder");
    let old = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = old.local_addr().expect("an address");
    drop(old);
    let json = format!(r#"{{"run_id":"test","address":"{address}","token":"old"}}"#);
    let path = dir.path().join("ranks.json");
    std::fs::write(&path, json).expect("written");
    let launches = [0, 1, 2].map(|rank| Launch {
        leader: None,
        token: None,
        ..launch(rank, 3)
    });
    // Followers first, so that they read the old file.
    let threads: Vec<_> = launches
        .into_iter()
        .rev()
        .map(|launch| {
            let dir = dir.path().to_owned();
            let thread = thread::spawn(move || {
                let identity = identity(launch.rank);
                let mut ranks = Ranks::meet(&launch, &identity, Some(&dir), &patient())?;
                let bytes = ranks.broadcast(vec![3])?;
                ranks.end()?;
                Ok::<_, RanksError>(bytes)
            });
            thread::sleep(Duration::from_millis(100));
            thread
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().expect("no panic").expect("met"), [3]);
    }
    assert!(!path.exists());
    let nowhere = Launch {
        leader: None,
        ..launch(0, 2)
    };
    let error = meet_as(&nowhere, &identity(0), &patient()).expect_err("no address");
    assert!(matches!(error, RanksError::NoAddress { .. }), "{error}");
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
