//! How the ranks of a run find each other: the leader listens, followers connect, and a
//! process that does not belong to the run is refused by name.

mod follow;
mod lead;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Settings;
use crate::door::Ranks;
use crate::error::Result;
use crate::handshake::{Hello, PROTOCOL};
use crate::launcher::Launch;
use crate::token::{hex, random_bytes};

/// Ports behind the launcher's port that are tried. The launcher itself may listen on its port.
pub const PORTS: u16 = 8;

/// Maximum bytes of a host name, as in DNS.
const HOST_BYTES: usize = 253;

/// A process's description of itself, for the meeting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// The program's version. All ranks need the same.
    pub version: String,
    /// Named values that must be equal on all ranks, such as "config", "examples", "weights" and
    /// "device". A difference refuses the rank, by this name and with both values.
    pub digests: BTreeMap<String, String>,
    /// Named values that must differ between ranks on one host, such as "GPU" with a PCI ID.
    pub unique: BTreeMap<String, String>,
}

impl Ranks {
    /// Meets the other ranks of the run. Returns when all have arrived; with one rank at once.
    ///
    /// If the launcher gives no address of the leader, the leader writes its address into
    /// `ranks.json` in `directory`, which all hosts must share, and removes it at the end of the
    /// meeting.
    ///
    /// # Errors
    ///
    /// - Ranks are missing at the deadline, or this follower finds no leader.
    /// - A rank has another program, another digest, an invalid rank, or the rank of another one.
    ///   The leader and all followers end with an error that names it.
    /// - The leader cannot listen, or there is neither an address nor a directory.
    /// - `ranks.json` cannot be read or written.
    pub fn meet(
        launch: &Launch,
        identity: &Identity,
        directory: Option<&Path>,
        settings: &Settings,
    ) -> Result<Ranks> {
        if launch.world_size == 1 {
            return Ok(Ranks::alone());
        }
        let deadline = Instant::now() + Duration::from_secs(settings.meeting_seconds);
        if launch.rank == 0 {
            lead::lead(launch, identity, directory, settings, deadline)
        } else {
            follow::follow(launch, identity, directory, settings, deadline)
        }
    }
}

fn hello_of(launch: &Launch, identity: &Identity) -> Hello {
    let mut host = crate::host_name();
    host.truncate(host.floor_char_boundary(HOST_BYTES));
    Hello {
        protocol: PROTOCOL,
        version: identity.version.clone(),
        run_id: launch.run_id.clone(),
        world_size: launch.world_size,
        rank: launch.rank,
        host,
        digests: identity.digests.clone(),
        unique: identity.unique.clone(),
        nonce: hex(&random_bytes()),
    }
}

/// The ports on which the leader may listen.
fn ports_after(port: u16) -> std::ops::RangeInclusive<u16> {
    port.saturating_add(1)..=port.saturating_add(PORTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launchers_own_port_is_not_used() {
        assert_eq!(ports_after(29500), 29501..=29508);
    }
}
