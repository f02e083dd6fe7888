//! The Python that runs functions of models and of benchmarks, each in a sandbox of its own.

use tooltune_sandbox::{Launcher, PythonRunner, Requirement, Sandbox};

use crate::config::SandboxConfig;
use crate::error::Error;
use crate::interrupt;

/// The hidden first argument with which this program becomes a stage of the sandbox.
pub const SANDBOX_STAGE: &str = "sandbox-stage";

/// A Python whose processes this program isolates.
///
/// # Errors
///
/// A machine that cannot isolate what the config asks for, or no Python.
pub fn python_runner(config: &SandboxConfig) -> Result<PythonRunner, Error> {
    let launcher = Launcher {
        program: std::env::current_exe()
            .map_err(|error| Error::Usage(format!("this program cannot be found: {error}")))?,
        arguments: vec![SANDBOX_STAGE.to_owned()],
    };
    let requirement = if config.allow_unisolated {
        Requirement::AllowUnisolated
    } else {
        Requirement::Isolated
    };
    let sandbox = Sandbox::new(launcher, requirement)?;
    let runner = PythonRunner::new(sandbox, &config.python)?;
    Ok(runner.stopped_by(interrupt::flag()))
}
