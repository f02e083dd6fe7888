//! Measures a door (gather and broadcast of small messages) and sums, with ranks in threads of this
//! process: `cargo run --release -p tooltune-ranks --example cost_of_calls -- 2`.

#![allow(clippy::print_stdout, reason = "an example")]

use std::net::TcpListener;
use std::time::Instant;

use tooltune_ranks::{Identity, Launch, Launcher, LeaderAddress, Ranks, Settings, Token};

fn main() {
    let world_size: usize = std::env::args().nth(1).map_or(2, |n| n.parse().expect("N"));
    let own = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = own.local_addr().expect("an address").port().min(65_000);
    let ranks = (0..world_size).map(|rank| {
        let launch = Launch {
            launcher: Launcher::Own,
            rank,
            world_size,
            local_rank: rank,
            local_world_size: world_size,
            node: 0,
            leader: Some(LeaderAddress {
                host: "127.0.0.1".to_owned(),
                port,
            }),
            listen_on: None,
            run_id: "measure".to_owned(),
            token: Some(Token::new("measure".to_owned())),
            serves_mpi: false,
            parent: None,
        };
        std::thread::spawn(move || measure(&launch))
    });
    for rank in ranks.collect::<Vec<_>>() {
        rank.join().expect("no panic");
    }
}

fn measure(launch: &Launch) {
    let settings = Settings::default();
    let mut ranks = Ranks::meet(launch, &Identity::default(), None, &settings).expect("met");
    let n_doors = 500;
    let began = Instant::now();
    for _ in 0..n_doors {
        ranks.gather(&[1; 64]).expect("a gather");
        ranks.broadcast(vec![2; 32]).expect("a broadcast");
    }
    let door_ms = began.elapsed().as_secs_f64() * 1e3 / f64::from(n_doors);
    let world_size = ranks.world_size();
    if ranks.is_leader() {
        println!("{world_size} ranks: door {door_ms:.3} ms");
    }
    for n in [1usize, 4_900_000, 42_000_000] {
        let mut sums = vec![1i64; n];
        let mut best_ms = f64::MAX;
        for _ in 0..4 {
            let began = Instant::now();
            ranks.add_all(&mut sums).expect("sums");
            best_ms = best_ms.min(began.elapsed().as_secs_f64() * 1e3);
        }
        if ranks.is_leader() {
            println!("{world_size} ranks: sums of {n} values {best_ms:.2} ms");
        }
    }
    ranks.end().expect("the end");
}
