//! Meetings in threads of one process, with strangers and wrong ranks.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use tooltune_ranks::channel::{self, Kind};
use tooltune_ranks::{Identity, Launch, Ranks, RanksError, Settings, Token};

use super::in_threads::launch;
use super::support::{free_ports, identity, patient};

fn meet_as(launch: &Launch, identity: &Identity, settings: &Settings) -> Result<(), RanksError> {
    Ranks::meet(launch, identity, None, settings).map(|ranks| ranks.fail("the test is over", None))
}

/// Changes to a follower's hello, with parts of the error.
type WrongHello = (fn(&mut Launch, &mut Identity), [&'static str; 2]);

/// Invariant: A process that does not belong to a run is refused by name.
#[test]
fn every_wrong_hello_is_refused_by_name() {
    let wrong: [WrongHello; 8] = [
        (
            |_, identity| identity.version = "0.0.9".to_owned(),
            [
                "different program version",
                "has 0.0.9, the leader has 0.1.0",
            ],
        ),
        (
            |launch, _| launch.world_size = 3,
            ["different world size", "has 3, the leader has 2"],
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
            ["different config", "has b, the leader has a"],
        ),
        (
            |_, identity| {
                identity.digests.remove("weights");
            },
            ["different weights", "has none, the leader has w"],
        ),
        (
            |_, identity| {
                identity
                    .digests
                    .insert("device".to_owned(), "H100".to_owned());
            },
            ["different device", "has H100, the leader has none"],
        ),
        (
            |_, identity| {
                identity.unique.insert("GPU".to_owned(), "gpu 0".to_owned());
            },
            ["ranks 1 and 0", "both have GPU gpu 0"],
        ),
        (
            |_, identity| identity.version = "\u{1b}[2J\n".to_owned(),
            ["different program version", "has ?[2J?"],
        ),
    ];
    for (change, expected) in wrong {
        let first = launch(0, 2);
        let second = Launch {
            rank: 1,
            local_rank: 1,
            ..first.clone()
        };
        let mut launches = [first, second];
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
    let follower = Launch {
        rank: 1,
        local_rank: 1,
        ..leader_launch.clone()
    };
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
    let hello = |bytes: &[u8]| {
        let header = channel::header(Kind::Hello, false, bytes);
        [&header[..], &[7; 32], bytes].concat()
    };
    let proven = [&[7; 32], &br#"{"protocol":1}"#[..]].concat();
    let nested = [&[7; 32], &[b'['; 60_000][..]].concat();
    let garbage: [&[u8]; 9] = [
        &hello(b"x")[..],
        &[&channel::header(Kind::Hello, false, &proven)[..], &proven].concat(),
        &[&channel::header(Kind::Hello, false, &nested)[..], &nested].concat(),
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

/// As on several hosts, where each has one rank.
#[test]
fn ranks_meet_at_every_name_of_the_leaders_host() {
    let own_name = tooltune_ranks::host_name();
    for (host, listen_on) in [
        ("localhost", None),
        ("127.0.0.1", Some("127.0.0.1")),
        (own_name.as_str(), None),
    ] {
        let mut launches = [0, 1].map(|rank| Launch {
            rank,
            local_rank: 0,
            local_world_size: 1,
            node: rank,
            ..launch(0, 2)
        });
        launches[0].leader.as_mut().expect("an address").host = host.to_owned();
        launches[0].listen_on = listen_on.map(str::to_owned);
        launches[1].leader = launches[0].leader.clone();
        launches[1].run_id = launches[0].run_id.clone();
        let ranks = launches.map(|launch| {
            thread::spawn(move || {
                let identity = identity(launch.rank);
                let mut ranks = Ranks::meet(&launch, &identity, None, &patient())?;
                let bytes = ranks.broadcast(vec![8])?;
                ranks.end().map(|()| bytes)
            })
        });
        for rank in ranks {
            let bytes = rank.join().expect("no panic");
            assert_eq!(bytes.unwrap_or_else(|e| panic!("{host}: {e}")), [8]);
        }
    }
    let everywhere = Launch {
        listen_on: Some("0.0.0.0".to_owned()),
        ..launch(0, 2)
    };
    let error = meet_as(&everywhere, &identity(0), &patient()).expect_err("all interfaces");
    assert!(error.to_string().contains("all interfaces"), "{error}");
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
        rank,
        local_rank: rank,
        leader: None,
        token: None,
        run_id: "test".to_owned(),
        ..launch(0, 3)
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
