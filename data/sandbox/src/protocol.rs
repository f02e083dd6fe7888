//! What the stages of a run are told, and what they tell: files in the control folder of the run,
//! which the code itself cannot reach.

use std::fs;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tooltune_rows::budgets::{DOCUMENT_BYTES, Limit};
use tooltune_rows::regular_file;

use super::SandboxError;
use super::isolation::{Part, Parts};
use super::limits::Limits;

/// The order, as JSON.
pub(super) const ORDER: &str = "order.json";
/// Standard input of the program.
pub(super) const REQUEST: &str = "request";
/// What the program writes to the descriptor that its last argument names.
pub(super) const RESULT: &str = "result";
/// Why a stage failed: a [`StageFailure`] as JSON, empty if none did.
pub(super) const FAILURE: &str = "failure.json";
/// How the program ended: an [`End`] as JSON.
pub(super) const END: &str = "end.json";
/// Where the root of the program's files is mounted.
pub(super) const ROOT: &str = "root";
/// The working directory of a run without namespaces.
pub(super) const WORK: &str = "work";

/// What the stages shall do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// The parts of isolation that must be in force.
    pub(super) parts: Parts,
    /// Arguments of the launcher before those of a stage.
    pub(super) launcher_arguments: Vec<String>,
    /// What is run; nothing, to see whether the parts are there.
    pub(super) program: Option<Program>,
    /// Files and folders that the program may read beside those of the system.
    pub(super) read_only: Vec<PathBuf>,
    pub(super) limits: Limits,
}

/// A program with its arguments; the stages add the number of the result's descriptor, and those
/// of inherited ones, which the program shall close.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) arguments: Vec<String>,
    /// All of its environment beside what every run has.
    pub(super) environment: Vec<(String, String)>,
}

/// Why a stage gave up.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StageFailure {
    /// The part of isolation that is not to be had, if it is one.
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

/// How the program ended, as its parent saw it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) code: Option<i32>,
    pub(super) signal: Option<i32>,
    /// Processor time of the program, in user and kernel mode.
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
