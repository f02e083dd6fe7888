//! Functions that a model wrote to what they return, each in a sandbox of its own.

use serde_json::Value;
use tooltune_rows::json::{self, Style};
use tooltune_sandbox::{Failure, Launcher, Limits, PythonRunner, Requirement, Sandbox};
use tooltune_suites::toolqa::{CodeFailure, CodeRunner, ExtractedCode};

use crate::config::SandboxConfig;
use crate::error::Error;
use crate::interrupt;

/// The hidden first argument with which this program becomes a stage of the sandbox.
pub const SANDBOX_STAGE: &str = "sandbox-stage";

/// Runs Python in a sandbox.
#[derive(Debug)]
pub struct SandboxedCode {
    runner: PythonRunner,
    limits: Limits,
}

impl SandboxedCode {
    /// Finds out what this machine can isolate with.
    ///
    /// # Errors
    ///
    /// As [`python_runner`].
    pub fn open(config: &SandboxConfig) -> Result<Self, Error> {
        Ok(Self {
            runner: python_runner(config)?,
            limits: Limits::default(),
        })
    }
}

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

impl CodeRunner for SandboxedCode {
    fn run(&self, code: &ExtractedCode, response: &Value) -> Result<Value, CodeFailure> {
        let argument = json::dumps(response, Style::Python);
        let outcome = self
            .runner
            .run_function(&code.code, &code.name, &argument, &self.limits)
            .map_err(|error| CodeFailure::Unavailable {
                reason: error.to_string(),
            })?;
        let returned = outcome.result.map_err(failure)?;
        let text = returned
            .json
            .map_err(|reason| CodeFailure::Failed { reason })?;
        serde_json::from_str(&text).map_err(|error| CodeFailure::Failed {
            reason: error.to_string(),
        })
    }
}

fn failure(failure: Failure) -> CodeFailure {
    let reason = failure.to_string();
    match failure {
        Failure::TimedOut { .. }
        | Failure::CpuTime { .. }
        | Failure::Memory { .. }
        | Failure::OutputTooLarge { .. }
        | Failure::ResultTooLarge { .. } => CodeFailure::Stopped { reason },
        _ => CodeFailure::Failed { reason },
    }
}
