//! Functions that a model wrote to what they return.

use serde_json::Value;
use tooltune_rows::json::{self, Style};
use tooltune_sandbox::{Failure, Limits, PythonRunner};
use tooltune_suites::toolqa::{CodeFailure, CodeRunner, ExtractedCode};

use crate::config::SandboxConfig;
use crate::error::Error;
use crate::eval::suites::code::python_runner;

/// Runs Python in a sandbox.
#[derive(Debug)]
pub(super) struct SandboxedCode {
    runner: PythonRunner,
    limits: Limits,
}

impl SandboxedCode {
    /// Finds out what this machine can isolate with.
    ///
    /// # Errors
    ///
    /// As [`python_runner`].
    pub(super) fn open(config: &SandboxConfig) -> Result<Self, Error> {
        Ok(Self {
            runner: python_runner(config)?,
            limits: Limits::default(),
        })
    }
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
