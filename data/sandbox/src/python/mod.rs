//! Runs Python code with an argument and returns the function's value.
//!
//! The value is passed in a separate file instead of standard output, so printed text is never
//! mistaken for it. String hashes, and therefore the order of sets, are the same in every run.

mod interpreter;
mod outcome;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;
use serde::de::IgnoredAny;

pub use outcome::{Failure, Outcome, Returned};

use super::protocol::Program;
use super::{Isolation, Limits, Sandbox, SandboxError};
use interpreter::Interpreter;

/// Runs Python code in a sandbox, each run in a separate process.
#[derive(Debug, Clone)]
pub struct PythonRunner {
    sandbox: Sandbox,
    interpreter: Interpreter,
}

#[derive(Serialize)]
struct Request<'a> {
    code: &'a str,
    function: &'a str,
    /// JSON text, so that Python parses numbers exactly as written.
    argument: &'a str,
    max_bytes: u64,
}

impl PythonRunner {
    /// Finds the interpreter `python`, a path or a name in `PATH` such as `python3`, and the files
    /// that it needs.
    ///
    /// # Errors
    ///
    /// There is no such program, or it is not Python 3.8 or newer.
    pub fn new(sandbox: Sandbox, python: &str) -> Result<Self, SandboxError> {
        let interpreter = Interpreter::find(python)?;
        Ok(Self {
            sandbox,
            interpreter,
        })
    }

    /// Returns this runner with a stop flag: its runs end immediately with
    /// [`SandboxError::Stopped`] when `stop` is set.
    #[must_use]
    pub fn with_stop_flag(self, stop: Arc<AtomicBool>) -> Self {
        Self {
            sandbox: self.sandbox.with_stop_flag(stop),
            ..self
        }
    }

    /// The isolation of the runs.
    pub fn isolation(&self) -> &Isolation {
        self.sandbox.isolation()
    }

    /// The interpreter's executable and its version, such as `3.11.7`.
    pub fn interpreter(&self) -> (&Path, &str) {
        (&self.interpreter.program, &self.interpreter.version)
    }

    /// Runs `code`, then calls the function that it defines with one argument, given as JSON.
    ///
    /// # Errors
    ///
    /// The argument is not JSON, a limit is invalid, or the sandbox fails. Errors of the code are a
    /// [`Failure`] in the outcome.
    pub fn run_function(
        &self,
        code: &str,
        function: &str,
        argument: &str,
        limits: &Limits,
    ) -> Result<Outcome, SandboxError> {
        let request = Request {
            code,
            function,
            argument,
            max_bytes: limits.output_bytes,
        };
        self.run(&request, &[], limits)
    }

    /// Runs a script of the caller. Its function `main` receives `request`, given as JSON, can read
    /// and import the files and folders in `read_only`, and returns the result.
    ///
    /// # Errors
    ///
    /// The request is not JSON, a folder does not exist, a limit is invalid, or the sandbox fails.
    /// Errors of the script are a [`Failure`] in the outcome.
    pub fn run_script(
        &self,
        script: &str,
        request: &str,
        read_only: &[PathBuf],
        limits: &Limits,
    ) -> Result<Outcome, SandboxError> {
        let request = Request {
            code: script,
            function: "main",
            argument: request,
            max_bytes: limits.output_bytes,
        };
        self.run(&request, read_only, limits)
    }

    fn run(
        &self,
        request: &Request<'_>,
        read_only: &[PathBuf],
        limits: &Limits,
    ) -> Result<Outcome, SandboxError> {
        let bad_argument = |error: serde_json::Error| SandboxError::BadArgument {
            reason: error.to_string(),
        };
        serde_json::from_str::<IgnoredAny>(request.argument).map_err(bad_argument)?;
        let text = serde_json::to_vec(request).map_err(bad_argument)?;
        let mut readable = self.interpreter.read_only.clone();
        readable.extend_from_slice(read_only);
        let program = self.interpreter.program_with(BOOTSTRAP);
        let finished = self.sandbox.run(program, &text, &readable, limits)?;
        Ok(Outcome::from_finished(finished, limits))
    }
}

/// Reads the request, calls the function, and writes the result.
const BOOTSTRAP: &str = include_str!("bootstrap.py");

impl Interpreter {
    fn program_with(&self, script: &str) -> Program {
        // `-I` is not used, because it would also ignore the variables below. The environment
        // contains nothing else.
        let arguments = ["-s", "-B", "-c", script].map(str::to_owned).to_vec();
        let environment = [
            ("PYTHONHASHSEED", "0"),
            ("PYTHONSAFEPATH", "1"),
            ("PYTHONUTF8", "1"),
            // Linear algebra libraries reserve memory for every processor they detect.
            ("OPENBLAS_NUM_THREADS", "1"),
            ("OMP_NUM_THREADS", "1"),
            ("MKL_NUM_THREADS", "1"),
            ("MALLOC_ARENA_MAX", "1"),
        ];
        Program {
            path: self.program.clone(),
            arguments,
            environment: environment
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .to_vec(),
        }
    }
}
