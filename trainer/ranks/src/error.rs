//! Errors when ranks meet and when they work together.

use crate::channel::FrameError;

/// The result of this crate's calls.
pub type Result<T> = std::result::Result<T, RanksError>;

/// The reason why ranks cannot meet or cannot continue together. Every rank of a run ends with one
/// of these errors, and its message names the rank that caused it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RanksError {
    /// The connection to another rank has closed or broken without an orderly end.
    #[error(
        "lost the connection to rank {rank} on {host} ({phase}): {reason}; look at the log of that rank"
    )]
    Lost {
        /// The rank that is no longer connected.
        rank: usize,
        /// Its host name.
        host: String,
        /// Its last reported phase.
        phase: String,
        /// The operating system's reason.
        reason: String,
    },

    /// Another rank has sent nothing for `silence_seconds`, not even a beat.
    #[error(
        "rank {rank} on {host} has been silent for {seconds} s (last phase: {phase}); check that \
         its host is up and that its process is not stopped"
    )]
    Silent {
        /// The silent rank.
        rank: usize,
        /// Its host name.
        host: String,
        /// Its last reported phase.
        phase: String,
        /// Seconds since its last byte.
        seconds: u64,
    },

    /// Another rank is alive but has made no progress for `step_seconds`.
    #[error(
        "rank {rank} on {host} has made no progress for {seconds} s (last phase: {phase}); if a \
         step can take that long, raise ranks.step_seconds"
    )]
    Stalled {
        /// The rank without progress.
        rank: usize,
        /// Its host name.
        host: String,
        /// Its last reported phase.
        phase: String,
        /// Seconds since its last progress.
        seconds: u64,
    },

    /// Another rank ended with an error of its own, which it reported before it closed.
    #[error("rank {rank} on {host} ended the run: {message}")]
    Ended {
        /// The rank that ended.
        rank: usize,
        /// Its host name.
        host: String,
        /// Its error message.
        message: String,
    },

    /// Another rank has sent bytes that are not a valid frame.
    #[error(
        "rank {rank} on {host} sent invalid data: {source}; compare the program versions and check the network"
    )]
    Malformed {
        /// The sending rank.
        rank: usize,
        /// Its host name.
        host: String,
        /// What is wrong with the bytes.
        source: FrameError,
    },

    /// Two ranks made different calls at the same time. This is an error of the program.
    #[error("rank {rank} on {host} sent {found}, expected {expected}: the ranks are out of step")]
    OutOfStep {
        /// The sending rank.
        rank: usize,
        /// Its host name.
        host: String,
        /// The call that this rank is in.
        expected: String,
        /// What arrived instead.
        found: String,
    },

    /// A message is longer than [`MESSAGE_BYTES`](crate::budgets::MESSAGE_BYTES).
    #[error(
        "a message between ranks has more than {limit} bytes (MESSAGE_BYTES in docs/limits.md); send it in parts"
    )]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },

    /// A call that only the leader, or only a follower, may make. This is an error of the program.
    #[error("rank {rank} of {world_size} cannot {call}")]
    WrongRole {
        /// The calling rank.
        rank: usize,
        /// The number of ranks.
        world_size: usize,
        /// The call.
        call: &'static str,
    },

    /// A value that must be equal on all ranks differs.
    #[error("different {name}: rank {rank} on {host} has {value}, the leader has {leader}; {advice}", advice = advice(name))]
    Differs {
        /// The value's name, such as "config" or "weights".
        name: String,
        /// The rank with the other value.
        rank: usize,
        /// Its host name.
        host: String,
        /// The value of that rank.
        value: String,
        /// The leader's value.
        leader: String,
    },

    /// Two ranks have the same value where each needs its own, such as a GPU.
    #[error(
        "ranks {rank} and {other_rank} on {host} both have {name} {value}; give each rank its own"
    )]
    Shared {
        /// The value's name, such as "GPU".
        name: String,
        /// The shared value.
        value: String,
        /// The rank that arrived last.
        rank: usize,
        /// The rank that has the same value.
        other_rank: usize,
        /// The host name of the rank that arrived last.
        host: String,
    },

    /// Two processes have the same rank.
    #[error(
        "two processes have rank {rank}: one on {host}, one on {other_host}; check the launcher's variables"
    )]
    DuplicateRank {
        /// The rank.
        rank: usize,
        /// The host of the process that arrived last.
        host: String,
        /// The host of the process that arrived first.
        other_host: String,
    },

    /// A process has a rank that is not below the number of ranks, or the leader's rank 0.
    #[error(
        "a process on {host} has rank {rank}, but followers have the ranks 1 to {last}; check the launcher's variables"
    )]
    RankOutOfRange {
        /// The invalid rank.
        rank: usize,
        /// Its host name.
        host: String,
        /// The largest valid rank.
        last: usize,
    },

    /// Some ranks did not arrive at the meeting before its deadline.
    #[error(
        "after {seconds} s, {missing} did not connect to {address}{refused}; check that the processes started and that their hosts can reach this address"
    )]
    Missing {
        /// The missing ranks, such as "rank 3" or "ranks 3, 5 to 7".
        missing: String,
        /// Seconds that the leader waited.
        seconds: u64,
        /// The address at which the leader listened.
        address: String,
        /// A note on connections that were refused, or empty.
        refused: String,
    },

    /// A follower did not find the leader before the deadline.
    #[error(
        "after {seconds} s, no leader was found at {address}; last attempt: {reason}; check that rank 0 started and that this host can reach it"
    )]
    NoLeader {
        /// The addresses that the follower tried.
        address: String,
        /// Seconds that the follower tried.
        seconds: u64,
        /// Why the last attempt failed.
        reason: String,
    },

    /// The leader does not accept this rank, or ended the meeting because of another rank.
    #[error("the leader at {address} refused this rank: {reason}")]
    Refused {
        /// The leader's address.
        address: String,
        /// The leader's reason.
        reason: String,
    },

    /// The leader cannot listen.
    #[error(
        "cannot listen for other ranks on {address}: {reason}; set TOOLTUNE_RANKS_ADDRESS to an address of this host, or choose another MASTER_PORT"
    )]
    Listen {
        /// The address and the ports that were tried.
        address: String,
        /// The operating system's reason.
        reason: String,
    },

    /// The launcher gives no address of the leader and there is no shared directory.
    #[error(
        "{launcher} does not give the address of rank 0; set TOOLTUNE_LEADER=HOST:PORT, or use an output directory that all hosts share"
    )]
    NoAddress {
        /// The launcher.
        launcher: &'static str,
    },

    /// `ranks.json` cannot be read, written or removed.
    #[error("{reason}")]
    RanksFile {
        /// The complete message.
        reason: String,
    },

    /// A thread of the connection cannot start.
    #[error(
        "cannot start a thread for the connection to other ranks: {reason}; raise the limit of threads (ulimit -u)"
    )]
    Thread {
        /// The operating system's reason.
        reason: String,
    },
}

impl RanksError {
    /// Whether another rank has already ended, and reports the cause.
    pub fn is_of_other_rank(&self) -> bool {
        self.ended_rank().is_some()
    }

    /// The rank whose connection is over because of this error.
    pub(crate) fn ended_rank(&self) -> Option<usize> {
        match self {
            RanksError::Lost { rank, .. } | RanksError::Ended { rank, .. } => Some(*rank),
            _ => None,
        }
    }
}

/// What to do about a value that differs.
fn advice(name: &str) -> &'static str {
    match name {
        "program version" | "protocol version" => "install the same version on all hosts",
        "world size" => "start all ranks with one launcher",
        "config" => "start all ranks with the same config and options",
        "examples" | "pairs" => "give all ranks the same data files and tokenizer",
        "weights" | "retriever weights" => "give all ranks the same model files",
        "device" => "use GPUs of one model and driver",
        _ => "all ranks must have the same value",
    }
}
