//! Ranks for tests: launches with free ports, and ranks in threads.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::thread;

use tooltune_ranks::{Identity, Launch, Launcher, LeaderAddress, Ranks, Settings, Token};

/// Settings for a busy machine: long enough that only the tested fault ends a run.
pub(crate) fn patient() -> Settings {
    Settings {
        meeting_seconds: 60,
        silence_seconds: 60,
        step_seconds: 120,
    }
}

/// A port with free ports after it.
pub(crate) fn free_ports() -> u16 {
    loop {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        if port < 65_000 {
            return port;
        }
    }
}

/// A rank on this host, with the address of a new run.
pub(crate) fn launch(rank: usize, world_size: usize) -> Launch {
    Launch {
        launcher: Launcher::Own,
        rank,
        world_size,
        local_rank: rank,
        local_world_size: world_size,
        node: 0,
        leader: Some(LeaderAddress {
            host: "127.0.0.1".to_owned(),
            port: free_ports(),
        }),
        listen_on: None,
        run_id: "test".to_owned(),
        token: Some(Token::new("secret".to_owned())),
    }
}

/// What a rank says about itself.
pub(crate) fn identity(rank: usize) -> Identity {
    let entry = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Identity {
        version: "0.1.0".to_owned(),
        digests: BTreeMap::from([entry("config", "a"), entry("weights", "w")]),
        unique: BTreeMap::from([entry("GPU", &format!("gpu {rank}"))]),
    }
}

/// Runs each rank in a thread, and returns their results in order of rank.
pub(crate) fn run_ranks<T: Send + 'static>(
    world_size: usize,
    settings: Settings,
    work: impl Fn(Ranks) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let first = launch(0, world_size);
    let threads: Vec<_> = (0..world_size)
        .map(|rank| {
            let launch = Launch {
                rank,
                local_rank: rank,
                ..first.clone()
            };
            let (work, settings) = (work.clone(), settings.clone());
            thread::spawn(move || {
                let ranks = Ranks::meet(&launch, &identity(rank), None, &settings);
                work(ranks.expect("the meeting"))
            })
        })
        .collect();
    let joined = threads.into_iter().map(|thread| thread.join());
    joined.map(|result| result.expect("no panic")).collect()
}

/// Runs work that succeeds on each rank, and ends in order.
pub(crate) fn with_ranks(world_size: usize, work: impl Fn(&mut Ranks) + Clone + Send + 'static) {
    run_ranks(world_size, patient(), move |mut ranks| {
        work(&mut ranks);
        ranks.end().expect("the end");
    });
}
