//! Connects the processes of one training run, its ranks.
//!
//! Rank 0 is the leader: it decides, writes, and gives orders over one TCP connection per follower.
//! [`role`] finds out what this process is, [`local`] starts several processes on one host,
//! [`Ranks::meet`] connects them, and the other calls of [`Ranks`] work together. Everything is
//! bounded in time and memory: a rank that is lost, silent or slow ends the run with an error that
//! names it.
//!
//! Messages are bytes. The connections are authenticated but not encrypted, so they belong into a
//! private network.
//!
//! ```
//! use tooltune_ranks::Ranks;
//!
//! let mut ranks = Ranks::alone();
//! let mut sums = [1, 2];
//! ranks.add_all(&mut sums).unwrap();
//! assert_eq!(sums, [1, 2]);
//! assert_eq!(ranks.gather(b"report").unwrap(), Some(vec![b"report".to_vec()]));
//! ranks.end().unwrap();
//! ```

mod address;
mod beat;
pub mod budgets;
pub mod channel;
mod connected;
mod door;
mod error;
mod handshake;
pub mod launcher;
mod link;
#[cfg(unix)]
pub mod local;
mod meeting;
mod messages;
pub mod preflight;
mod ranks_file;
mod sums;
mod token;
mod writer;

pub use address::host_name;
pub use beat::Pulse;
pub use door::Ranks;
pub use error::{RanksError, Result};
pub use launcher::{
    Launch, LaunchError, Launcher, LeaderAddress, Node, RequestedRanks, Role, role,
};
pub use meeting::{Identity, PORTS};
pub use token::Token;

/// How long ranks wait for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Seconds until all ranks must have met.
    pub meeting_seconds: u64,
    /// Seconds without a byte from a rank, after which the run ends. Ranks send a beat every 2 s, so
    /// fewer than 6 count as 6.
    pub silence_seconds: u64,
    /// Seconds without progress of a rank, after which the run ends. Fewer than 6 count as 6.
    pub step_seconds: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            meeting_seconds: 600,
            silence_seconds: 20,
            step_seconds: 600,
        }
    }
}
