//! Ports and settings for the tests of ranks.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};

use tooltune_ranks::{Identity, Settings};

/// Settings for a busy machine: long enough that only the tested fault ends a run.
pub(crate) fn patient() -> Settings {
    Settings {
        meeting_seconds: 60,
        silence_seconds: 60,
        step_seconds: 120,
        linger_seconds: 2,
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

/// The description of a rank.
pub(crate) fn identity(rank: usize) -> Identity {
    let entry = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Identity {
        version: "0.1.0".to_owned(),
        digests: BTreeMap::from([entry("config", "a"), entry("weights", "w")]),
        unique: BTreeMap::from([entry("GPU", &format!("gpu {rank}"))]),
    }
}
