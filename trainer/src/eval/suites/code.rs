//! Runs Python functions from models and benchmarks, each in its own sandbox.

use tooltune_sandbox::{Launcher, PythonRunner, Requirement, Sandbox};

use crate::config::SandboxConfig;
use crate::error::Error;
use crate::interrupt;

/// The hidden first argument that makes this program a sandbox stage.
pub const SANDBOX_STAGE: &str = "sandbox-stage";

/// A Python interpreter whose processes this program isolates.
///
/// # Errors
///
/// The machine cannot provide the configured isolation, or has no Python.
pub fn python_runner(config: &SandboxConfig) -> Result<PythonRunner, Error> {
    let launcher = Launcher {
        program: std::env::current_exe().map_err(|error| {
            Error::Usage(format!("cannot find the path of this program: {error}"))
        })?,
        arguments: vec![SANDBOX_STAGE.to_owned()],
    };
    let requirement = if config.allow_unisolated {
        Requirement::AllowUnisolated
    } else {
        Requirement::Isolated
    };
    let sandbox = Sandbox::new(launcher, requirement)?;
    let runner = PythonRunner::new(sandbox, &config.python)?;
    Ok(runner.with_stop_flag(interrupt::flag()))
}
