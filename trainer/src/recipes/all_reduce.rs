//! Chooses what adds the gradients of all processes: MPI, or the connections between them.

use std::fmt;
use std::time::{Duration, Instant};

use tooltune_kernels::mpi::{self, Library, Mpi, MpiError};
use tooltune_ranks::{AllReduce, Launch, Ranks};

use super::ranks::Working;
use crate::error::Error;
use crate::eval::served::{from_bytes, to_bytes};

/// How long MPI may take to start. A process that does not start would hold up all others.
const START: Duration = Duration::from_secs(60);

/// How long MPI may take to end again when it is not used.
const END: Duration = Duration::from_secs(5);

/// What adds the gradients of all processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllReduceBy {
    /// MPI, with its description and the path of its library.
    Mpi(String),
    /// The connections to the first process, with the reason why not MPI.
    Connections(String),
}

impl fmt::Display for AllReduceBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mpi(library) => write!(f, "MPI ({library})"),
            Self::Connections(reason) => write!(f, "TCP connections ({reason})"),
        }
    }
}

/// MPI, which the door of [`Ranks`] guards.
#[derive(Debug)]
struct BetweenProcesses(Mpi);

impl AllReduce for BetweenProcesses {
    fn add_all(&mut self, sums: &mut [i64], is_running: &dyn Fn() -> bool) -> Result<(), String> {
        let added = self.0.add_all(sums, is_running);
        added.map_err(|error| error.to_string())
    }

    fn end(self: Box<Self>, is_running: &dyn Fn() -> bool) -> Result<(), String> {
        let ended = self.0.finalize(is_running);
        ended.map_err(|error| error.to_string())
    }
}

/// Makes the processes add their gradients by MPI if their launcher serves it and its library has
/// the standard ABI on all of them. All processes call it and get the same kind of result.
///
/// # Errors
///
/// A process was lost.
pub fn choose(launch: &Launch, ranks: &mut Ranks) -> Result<AllReduceBy, Error> {
    let opened = match launch.serves_mpi {
        true => open(),
        false => Err(format!("{} starts no MPI", launch.launcher.name())),
    };
    // MPI starts in all processes or in none: one that is missing would hold up the others.
    let reason = first_reason(ranks, opened.as_ref().err())?;
    let library = match (opened, reason) {
        (Ok(library), None) => library,
        (_, reason) => return Ok(AllReduceBy::Connections(reason.unwrap_or_default())),
    };
    let text = format!("{}, {}", library.description(), library.path().display());
    let working = Working::begin(ranks, "starting MPI");
    let started = start(library, launch, ranks);
    drop(working);
    let reason = started.as_ref().err().map(|(_, reason)| reason);
    let reason = first_reason(ranks, reason)?;
    match (started, reason) {
        (Ok(mpi), None) => {
            ranks.add_by(Box::new(BetweenProcesses(mpi)));
            Ok(AllReduceBy::Mpi(text))
        }
        (Ok(mpi) | Err((Some(mpi), _)), reason) => {
            let begun = Instant::now();
            // A process that cannot end MPI ends without it.
            drop(mpi.finalize(&|| begun.elapsed() < END));
            Ok(AllReduceBy::Connections(reason.unwrap_or_default()))
        }
        (Err((None, _)), reason) => Ok(AllReduceBy::Connections(reason.unwrap_or_default())),
    }
}

fn open() -> Result<Library, String> {
    let switch = std::env::var(mpi::SWITCH).ok();
    Library::open(switch.as_deref()).map_err(|error| error.to_string())
}

/// Starts MPI, and compares its place of this process with the launcher's.
fn start(library: Library, launch: &Launch, ranks: &Ranks) -> Result<Mpi, (Option<Mpi>, String)> {
    let begun = Instant::now();
    let pulse = ranks.pulse();
    let is_wanted = || begun.elapsed() < START && pulse.check().is_ok();
    let mpi = library.start(&is_wanted).map_err(|error| {
        let reason = match error {
            MpiError::GivenUp => format!("MPI did not start in {} s", START.as_secs()),
            other => other.to_string(),
        };
        (None, reason)
    })?;
    let [own, theirs] = [
        (mpi.rank(), mpi.world_size()),
        (launch.rank, launch.world_size),
    ];
    if own == theirs {
        return Ok(mpi);
    }
    let reason = format!(
        "MPI has rank {} of {}, {} has rank {} of {}; use the library of that launcher",
        own.0,
        own.1,
        launch.launcher.name(),
        theirs.0,
        theirs.1
    );
    Err((Some(mpi), reason))
}

/// The reason of the first process that has one, with the process. All processes call it.
fn first_reason(ranks: &mut Ranks, own: Option<&String>) -> Result<Option<String>, Error> {
    let all = ranks.gather(&to_bytes(&own))?;
    let mut first: Option<String> = None;
    for (rank, bytes) in all.into_iter().flatten().enumerate() {
        let reason: Option<String> = from_bytes(&bytes)?;
        let named = |reason: String| match rank {
            0 => reason,
            _ => format!("rank {rank} on {}: {reason}", ranks.hosts()[rank]),
        };
        first = first.or_else(|| reason.map(named));
    }
    from_bytes(&ranks.broadcast(to_bytes(&first))?)
}
