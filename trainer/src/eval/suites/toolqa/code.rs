//! Runs model-generated functions and returns their results.

use serde_json::Value;
use tooltune_json as json;
use tooltune_json::Style;
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
    /// Checks which isolation this machine supports.
    ///
    /// # Errors
    ///
    /// Same as [`python_runner`].
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
        json::from_slice(text.as_bytes()).map_err(|error| CodeFailure::Failed {
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
