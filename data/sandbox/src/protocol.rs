//! The files through which this process and the stages of a run communicate. They are in the run's
//! control folder, which the code cannot access.

use std::fs;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tooltune_disk::budgets::Limit;
use tooltune_disk::regular_file;
use tooltune_json::budgets::DOCUMENT_BYTES;

use super::SandboxError;
use super::isolation::{Part, Parts};
use super::limits::Limits;

/// The order for the stages, as JSON.
pub(super) const ORDER: &str = "order.json";
/// Standard input of the program.
pub(super) const REQUEST: &str = "request";
/// The program's result. The program writes it to the descriptor in its last argument.
pub(super) const RESULT: &str = "result";
/// Why a stage failed: a [`StageFailure`] as JSON; empty if no stage failed.
pub(super) const FAILURE: &str = "failure.json";
/// How the program ended: an [`ExitEnd`] as JSON.
pub(super) const END: &str = "end.json";
/// Mount point of the program's root.
pub(super) const ROOT: &str = "root";
/// The working directory of a run without namespaces.
pub(super) const WORK: &str = "work";

/// The order for the stages.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RunOrder {
    /// The parts of the isolation that must be active.
    pub(super) parts: Parts,
    /// Arguments of the launcher before the arguments of a stage.
    pub(super) launcher_arguments: Vec<String>,
    /// The program to run; `None` to only test whether the parts are available.
    pub(super) program: Option<Program>,
    /// Files and folders that the program can read in addition to system files.
    pub(super) read_only: Vec<PathBuf>,
    pub(super) limits: Limits,
}

/// A program with its arguments. The stages append the number of the result's descriptor, and the
/// numbers of inherited descriptors, which the program must close.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) arguments: Vec<String>,
    /// Environment variables in addition to the ones that every run has.
    pub(super) environment: Vec<(String, String)>,
}

/// Why a stage failed.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StageFailure {
    /// The unavailable isolation part, if that is the reason.
    pub(super) part: Option<Part>,
    pub(super) reason: String,
}

impl StageFailure {
    pub(super) fn new(part: impl Into<Option<Part>>, reason: impl Into<String>) -> Self {
        Self {
            part: part.into(),
            reason: reason.into(),
        }
    }
}

/// How the program ended, as seen by its parent.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct ExitEnd {
    pub(super) code: Option<i32>,
    pub(super) signal: Option<i32>,
    /// The program's processor time, in user and kernel mode.
    pub(super) cpu_secs: f64,
}

pub(super) fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), SandboxError> {
    let text = serde_json::to_vec(value).map_err(|error| SandboxError::File {
        path: path.to_owned(),
        error: error.into(),
    })?;
    fs::write(path, text).map_err(|error| SandboxError::File {
        path: path.to_owned(),
        error,
    })
}

pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, SandboxError> {
    let failed = |error| SandboxError::File {
        path: path.to_owned(),
        error,
    };
    let text = regular_file::read(path, Limit::new("DOCUMENT_BYTES", DOCUMENT_BYTES as u64))
        .map_err(failed)?;
    serde_json::from_slice(&text).map_err(|error| failed(error.into()))
}
