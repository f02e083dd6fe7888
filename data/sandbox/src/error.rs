//! Why code of a model is not run.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::isolation::{MissingPart, Part};

/// A reason why nothing was run; what the code itself does wrong is a [`super::Failure`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// The machine refuses what isolation needs.
    #[error(
        "code of a model is not run here, because it cannot be isolated; that needs seccomp, and namespaces or Landlock, and there is no {}",
        listed(.missing)
    )]
    NotIsolated {
        /// What is missing.
        missing: Vec<MissingPart>,
    },

    /// There is no isolation for this system.
    #[error(
        "code of a model is run on Linux only, because this program can isolate it nowhere else; use Linux, or a virtual machine or container with it"
    )]
    OtherSystem,

    /// The program that prepares the process of the code does not do so.
    #[error(
        "{} cannot be started as a stage of the sandbox: {reason}; it must hand its arguments to sandbox::enter before it starts a thread", .program.display()
    )]
    Launcher {
        /// The program.
        program: PathBuf,
        /// What happened instead.
        reason: String,
    },

    /// A step before the code failed.
    #[error("the sandbox could not be made ready{}: {reason}", within(*.part))]
    Stage {
        /// The part that it belongs to, if to one.
        part: Option<Part>,
        /// Which step, and what the system said.
        reason: String,
    },

    /// A file of the sandbox cannot be made or read.
    #[error("{}: {error}; check space and permissions there", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },

    /// A run cannot be watched.
    #[error("a run in the sandbox cannot be watched: {0}")]
    Watch(io::Error),

    /// The caller ended the work while the code ran; nothing of it is left.
    #[error("a run in the sandbox was stopped with the work that it belongs to")]
    Stopped,

    /// A folder that the code shall read cannot be given to it.
    #[error("read-only folder {}: {reason}", .path.display())]
    BadFolder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// A limit cannot be used.
    #[error("limit {field} {reason}")]
    BadLimit {
        /// The limit.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },

    /// What the code shall get is no JSON.
    #[error("the argument for the code is no JSON: {reason}")]
    BadArgument {
        /// Where it is not.
        reason: String,
    },

    /// There is no usable Python.
    #[error("{program} {reason}; install Python 3.8 or newer, or give the path of its program")]
    NoPython {
        /// The program that was asked.
        program: String,
        /// What happened.
        reason: String,
    },
}

fn listed(missing: &[MissingPart]) -> String {
    let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
    missing.join(", no ")
}

fn within(part: Option<Part>) -> String {
    part.map_or_else(String::new, |part| format!(" ({part})"))
}
