//! Systems without Linux isolation, on which nothing is ever run.

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::SandboxError;
use super::finished::Finished;
use super::isolation::{Isolation, Requirement};
use super::launcher::Launcher;
use super::limits::Limits;
use super::protocol::Program;

/// Runs programs in isolation, which this system does not support.
#[derive(Debug, Clone)]
pub struct Sandbox {
    never: Infallible,
}

impl Sandbox {
    /// Always fails.
    ///
    /// # Errors
    ///
    /// Isolation is not supported on this system.
    pub fn new(_: Launcher, _: Requirement) -> Result<Self, SandboxError> {
        Err(SandboxError::UnsupportedSystem)
    }

    /// Returns the sandbox unchanged.
    #[must_use]
    pub fn with_stop_flag(self, _: Arc<AtomicBool>) -> Self {
        self
    }

    /// The isolation of the runs.
    pub fn isolation(&self) -> &Isolation {
        match self.never {}
    }

    pub(super) fn run(
        &self,
        _: Program,
        _: &[u8],
        _: &[PathBuf],
        _: &Limits,
    ) -> Result<Finished, SandboxError> {
        match self.never {}
    }
}

/// Fails, because this system has no stages of a sandbox.
pub fn enter(_: impl IntoIterator<Item = OsString>) -> ExitCode {
    ExitCode::FAILURE
}
