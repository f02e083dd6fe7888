//! Runs sequences of calls with the benchmark's own Python functions, in the sandbox.
//!
//! The folder is the user's copy of the benchmark's `data_v2/executable_functions`: a file with the
//! arithmetic functions, one file per other function, and the map from names to files. A sequence
//! runs in one process, because a function may modify the result of another function. Sequences of
//! only arithmetic functions run in the calling process, which has the same functions and avoids
//! the start-up time.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tooltune_disk::budgets::Limit;
use tooltune_disk::regular_file;
use tooltune_json::budgets::LINE_BYTES;
use tooltune_json::python::{PyDict, PyValue, dumps, loads};
use tooltune_sandbox::{Limits, PythonRunner};

use super::error::NestfulError;
use super::math_tools::math_tool;
use super::runner::{Execution, MathRunner, ToolRunner};
use super::sequence::{Argument, BoundCall, CallFailure, Sequence};

/// File that maps function names to source files.
pub const FUNCTION_MAP_FILE: &str = "func_file_map.json";
/// File with the arithmetic functions.
pub const BASIC_FUNCTIONS_FILE: &str = "basic_functions.py";

const SCRIPT: &str = include_str!("python_tools.py");

/// Runs the functions of a folder.
#[derive(Debug, Clone)]
pub struct PythonTools {
    runner: PythonRunner,
    folder: PathBuf,
    files: HashMap<String, String>,
    limits: Limits,
}

impl PythonTools {
    /// Reads the function map of a folder.
    ///
    /// # Errors
    ///
    /// The folder has no map of strings to strings, or a file in the map is missing.
    pub fn open(folder: &Path, runner: PythonRunner) -> Result<Self, NestfulError> {
        let unusable = |reason: String| NestfulError::Functions {
            folder: folder.to_path_buf(),
            reason,
        };
        let map = folder.join(FUNCTION_MAP_FILE);
        let text = regular_file::read_text(&map, Limit::new("LINE_BYTES", LINE_BYTES as u64))
            .map_err(|error| unusable(format!("cannot read {FUNCTION_MAP_FILE} ({error})")))?;
        let files = tooltune_json::from_slice(text.as_bytes());
        let files: HashMap<String, String> = files.map_err(|error| {
            unusable(format!(
                "{FUNCTION_MAP_FILE} is not an object of names and files ({error})"
            ))
        })?;
        let folder = folder
            .canonicalize()
            .map_err(|error| unusable(error.to_string()))?;
        let mut named_files: Vec<_> = files.iter().collect();
        named_files.sort();
        for (name, file) in named_files {
            let exists = regular_file::is_there(&folder.join(file));
            if exists.map_err(|error| unusable(format!("{file}: {error}")))? {
            } else {
                return Err(unusable(format!(
                    "{FUNCTION_MAP_FILE} maps {name} to {file}, which does not exist"
                )));
            }
        }
        Ok(Self {
            runner,
            folder,
            files,
            limits: Limits {
                // Some functions load PyTorch.
                memory_bytes: 8 << 30,
                ..Limits::default()
            },
        })
    }

    /// Sets other limits per sequence. The published scorer has a limit of ten seconds.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    fn file_of(&self, name: &str) -> Option<&str> {
        let source = self.files.get(name).map(String::as_str);
        source.or_else(|| math_tool(name).map(|_| BASIC_FUNCTIONS_FILE))
    }

    fn request(&self, sequence: &Sequence) -> String {
        let text = |text: &str| PyValue::Text(text.to_owned());
        let call = |call: &BoundCall| {
            let file = self.file_of(&call.name).unwrap_or_default();
            let keyword = |(name, value): &(String, Argument)| {
                PyValue::List(vec![text(name), argument(value)])
            };
            dict([
                ("name", text(&call.name)),
                ("file", text(file)),
                (
                    "positional",
                    PyValue::List(call.positional.iter().map(argument).collect()),
                ),
                (
                    "keywords",
                    PyValue::List(call.keywords.iter().map(keyword).collect()),
                ),
            ])
        };
        dumps(&dict([
            ("folder", text(&self.folder.to_string_lossy())),
            (
                "calls",
                PyValue::List(sequence.calls.iter().map(call).collect()),
            ),
        ]))
    }
}

fn dict<const N: usize>(fields: [(&str, PyValue); N]) -> PyValue {
    let text_fields = fields.map(|(key, value)| (key.to_owned(), value));
    PyValue::Dict(PyDict::from_iter(text_fields))
}

fn argument(argument: &Argument) -> PyValue {
    match argument {
        Argument::Literal(value) => dict([("literal", value.clone())]),
        Argument::Result(call_idx) => dict([("result", PyValue::Int((*call_idx).into()))]),
    }
}

impl ToolRunner for PythonTools {
    fn can_run(&self, name: &str) -> bool {
        self.file_of(name).is_some()
    }

    fn run(&self, sequence: &Sequence) -> Result<Execution, NestfulError> {
        if sequence
            .calls
            .iter()
            .all(|call| MathRunner.can_run(&call.name))
        {
            return MathRunner.run(sequence);
        }
        let missing = |call: &BoundCall| !self.can_run(&call.name);
        if let Some(call_idx) = sequence.calls.iter().position(missing) {
            let reason = format!("{FUNCTION_MAP_FILE} does not name the function");
            return Ok(Execution::Failed(CallFailure { call_idx, reason }));
        }
        let folder = std::slice::from_ref(&self.folder);
        let outcome = self
            .runner
            .run_script(SCRIPT, &self.request(sequence), folder, &self.limits)
            .map_err(runner_fault)?;
        match outcome.result {
            // If the process fails, the failure belongs to the whole sequence, because it is
            // unknown which call failed.
            Err(failure) => Ok(Execution::Failed(CallFailure {
                call_idx: sequence.calls.len().saturating_sub(1),
                reason: failure.to_string(),
            })),
            Ok(returned) => {
                let text = returned.json.map_err(runner_fault)?;
                let text: String = serde_json::from_str(&text).map_err(runner_fault)?;
                parse_execution(&loads(&text).map_err(runner_fault)?)
            }
        }
    }
}

/// Parses the script's result.
fn parse_execution(answer: &PyValue) -> Result<Execution, NestfulError> {
    if let Some(value) = answer.get("value") {
        return Ok(Execution::Value(decode_marks(value.clone())));
    }
    let failed = answer.get("failed");
    let call_idx = failed.and_then(|failed| failed.get("call")?.number());
    let call_idx = call_idx.and_then(|number| usize::try_from(number.integer().ok()?).ok());
    let reason = failed.and_then(|failed| failed.get("reason")?.as_text());
    match (call_idx, reason) {
        (Some(call_idx), Some(reason)) => Ok(Execution::Failed(CallFailure {
            call_idx,
            reason: reason.to_owned(),
        })),
        _ => Err(runner_fault(format!("unexpected result: {answer:?}"))),
    }
}

/// Decodes a value that the script marked because JSON cannot represent it.
fn decode_marks(value: PyValue) -> PyValue {
    let unmark_all = |items: Vec<PyValue>| items.into_iter().map(decode_marks).collect();
    match value {
        PyValue::List(items) => PyValue::List(unmark_all(items)),
        PyValue::Dict(mut fields) => match (
            fields.shift_remove("\0tuple"),
            fields.shift_remove("\0other"),
        ) {
            (Some(PyValue::List(items)), _) => PyValue::Tuple(unmark_all(items)),
            (_, Some(PyValue::Text(repr))) => PyValue::Other(repr),
            _ => PyValue::Dict(
                fields
                    .into_iter()
                    .map(|(key, value)| (key, decode_marks(value)))
                    .collect(),
            ),
        },
        other => other,
    }
}

fn runner_fault(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> NestfulError {
    NestfulError::Runner {
        source: source.into(),
    }
}
