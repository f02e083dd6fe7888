//! Reasons why model-written code is not run.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::isolation::{MissingPart, Part};

/// A reason why nothing was run. An error in the code itself is a [`super::Failure`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// The machine does not allow the required isolation.
    #[error(
        "model code is not run because it cannot be isolated: this needs seccomp, and namespaces or Landlock, but this machine has no {}",
        missing_list(.missing)
    )]
    NotIsolated {
        /// The unavailable parts.
        missing: Vec<MissingPart>,
    },

    /// Isolation is not supported on this system.
    #[error(
        "model code runs only on Linux, because tooltune cannot isolate it on other systems; use Linux, or a Linux virtual machine or container"
    )]
    UnsupportedSystem,

    /// The launcher failed to prepare the process of the code.
    #[error(
        "{} cannot be started as a stage of the sandbox: {reason}; it must pass its arguments to sandbox::enter before it starts a thread", .program.display()
    )]
    Launcher {
        /// The program.
        program: PathBuf,
        /// What happened instead.
        reason: String,
    },

    /// A step that prepares the sandbox failed before the code started.
    #[error("the sandbox could not be prepared{}: {reason}", part_suffix(*.part))]
    Stage {
        /// The part of the isolation that the step belongs to, if any.
        part: Option<Part>,
        /// The failed step, and the system's error.
        reason: String,
    },

    /// A file of the sandbox cannot be created or read.
    #[error("{}: {error}; check the free space and the permissions of its folder", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },

    /// A run cannot be monitored.
    #[error("a run in the sandbox cannot be monitored: {0}")]
    Watch(io::Error),

    /// The caller stopped the work while the code was running. The run was cleaned up.
    #[error("a run in the sandbox was stopped because its caller stopped")]
    Stopped,

    /// A read-only folder cannot be made available to the code.
    #[error("read-only folder {}: {reason}", .path.display())]
    BadFolder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// A limit is invalid.
    #[error("limit {field} {reason}")]
    BadLimit {
        /// The limit.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },

    /// The argument for the code is not JSON.
    #[error("the argument for the code is not JSON: {reason}")]
    BadArgument {
        /// The parser's message.
        reason: String,
    },

    /// No usable Python was found.
    #[error("{program} {reason}; install Python 3.8 or newer, or give the path of its executable")]
    NoPython {
        /// The Python program.
        program: String,
        /// What happened.
        reason: String,
    },
}

fn missing_list(missing: &[MissingPart]) -> String {
    let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
    missing.join(", no ")
}

fn part_suffix(part: Option<Part>) -> String {
    part.map_or_else(String::new, |part| format!(" ({part})"))
}
