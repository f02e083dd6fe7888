//! Python code and an argument become the value that a function returns.
//!
//! The value travels through a file of its own, not through standard output, so that what the code
//! prints is never mistaken for it. Hashes of strings are the same in every run, and with them the
//! order of sets.

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

/// Runs Python code in a sandbox, each run in a process of its own.
#[derive(Debug, Clone)]
pub struct PythonRunner {
    sandbox: Sandbox,
    interpreter: Interpreter,
}

#[derive(Serialize)]
struct Request<'a> {
    code: &'a str,
    function: &'a str,
    /// As text, so that Python reads numbers as they are written.
    argument: &'a str,
    max_bytes: u64,
}

impl PythonRunner {
    /// Asks `python`, a path or a name in `PATH` such as `python3`, where its files are.
    ///
    /// # Errors
    ///
    /// - there is no such program, or it is no Python of at least 3.8
    pub fn new(sandbox: Sandbox, python: &str) -> Result<Self, SandboxError> {
        let interpreter = Interpreter::find(python)?;
        Ok(Self {
            sandbox,
            interpreter,
        })
    }

    /// The same, whose runs end at once when `stop` is set, with [`SandboxError::Stopped`].
    #[must_use]
    pub fn stopped_by(self, stop: Arc<AtomicBool>) -> Self {
        Self {
            sandbox: self.sandbox.stopped_by(stop),
            ..self
        }
    }

    /// What isolates the runs.
    pub fn isolation(&self) -> &Isolation {
        self.sandbox.isolation()
    }

    /// The interpreter's program and its version, such as `3.11.7`.
    pub fn interpreter(&self) -> (&Path, &str) {
        (&self.interpreter.program, &self.interpreter.version)
    }

    /// Runs `code`, then calls the function that it defines with one argument, JSON text.
    ///
    /// # Errors
    ///
    /// - the argument is no JSON, a limit is unusable, or the sandbox fails; whatever goes wrong in
    ///   the code is a [`Failure`] of the outcome
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

    /// Runs a script of the caller's own: its function `main` gets `request`, JSON text, may read
    /// the files and folders of `read_only` and load code from there, and returns the result.
    ///
    /// # Errors
    ///
    /// - the request is no JSON, a folder does not exist, a limit is unusable, or the sandbox
    ///   fails; whatever goes wrong in the script is a [`Failure`] of the outcome
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
        let bad = |error: serde_json::Error| SandboxError::BadArgument {
            reason: error.to_string(),
        };
        serde_json::from_str::<IgnoredAny>(request.argument).map_err(bad)?;
        let text = serde_json::to_vec(request).map_err(bad)?;
        let mut readable = self.interpreter.read_only.clone();
        readable.extend_from_slice(read_only);
        let program = self.interpreter.program_with(BOOTSTRAP);
        let finished = self.sandbox.run(program, &text, &readable, limits)?;
        Ok(Outcome::of(finished, limits))
    }
}

/// Reads the request, calls the function, writes the result.
const BOOTSTRAP: &str = include_str!("bootstrap.py");

impl Interpreter {
    fn program_with(&self, script: &str) -> Program {
        // `-I` would also ignore the variables below; the environment holds nothing else.
        let arguments = ["-s", "-B", "-c", script].map(str::to_owned).to_vec();
        let environment = [
            ("PYTHONHASHSEED", "0"),
            ("PYTHONSAFEPATH", "1"),
            ("PYTHONUTF8", "1"),
            // Libraries of linear algebra reserve memory for every processor that they see.
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
