//! Runs ranks in threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tooltune_ranks::{Launch, Launcher, LeaderAddress, Ranks, Settings, Token};

use super::support::{free_ports, identity, patient};

/// A rank on this host, with the address of a new run.
pub(crate) fn launch(rank: usize, world_size: usize) -> Launch {
    // Tests run at the same time, and their ranges of ports can overlap.
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
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
        run_id: format!("test {} {run}", std::process::id()),
        token: Some(Token::new("secret".to_owned())),
        serves_mpi: false,
        parent: None,
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
