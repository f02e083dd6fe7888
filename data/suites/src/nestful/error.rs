//! Errors in NESTFUL rows and data sets.

use std::path::PathBuf;

use tooltune_apis::ToolsError;
use tooltune_json::python::PythonJsonError;

/// Why a row is invalid or cannot be scored. A bad prediction is never an error: it scores zero.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NestfulError {
    /// The error is in a line of a file.
    #[error("{place}: {error}")]
    At {
        /// `file:line`.
        place: String,
        /// The error of the line.
        error: Box<NestfulError>,
    },
    /// A file cannot be read, or has no rows.
    #[error(transparent)]
    File(#[from] ToolsError),
    /// A line, or a field with JSON text, is not JSON as Python parses it.
    #[error("{field} is not valid JSON: {error}; write one JSON object per line")]
    NotJson {
        /// The field, or `the line`.
        field: &'static str,
        /// The parser's error.
        error: PythonJsonError,
    },
    /// A field is missing.
    #[error(
        "field `{field}` is missing; a row needs sample_id, input, output, tools and gold_answer, \
         a call needs name and arguments, a tool needs name and output_parameters"
    )]
    MissingField {
        /// Path of the field, such as `output[2].name`.
        field: String,
    },
    /// A field has the wrong type.
    #[error("field `{field}` is {found}; it must be {expected}")]
    WrongType {
        /// Path of the field.
        field: String,
        /// Python's name of the actual type.
        found: &'static str,
        /// The expected type.
        expected: &'static str,
    },
    /// The gold sequence has no calls.
    #[error("`output` has no calls; add at least one gold call")]
    EmptyGold,
    /// A data set without samples has no mean.
    #[error("no samples to report; provide at least one")]
    NoSamples,
    /// The numbers of predictions and rows differ.
    #[error(
        "{n_predictions} predictions for {n_rows} rows; provide one per row, in the same order"
    )]
    Unpaired {
        /// Number of rows.
        n_rows: usize,
        /// Number of predictions.
        n_predictions: usize,
    },
    /// A prompt file is invalid.
    #[error("invalid prompts: {reason}")]
    Prompts {
        /// What is wrong, and how to fix it.
        reason: String,
    },
    /// A row is not an entry of MathQA.
    #[error(
        "{reason}; expected MathQA's fields Problem, options, correct, and annotated_formula or \
         linear_formula"
    )]
    Entry {
        /// What is wrong.
        reason: String,
    },
    /// A folder of functions is invalid.
    #[error(
        "{}: {reason}; pass the benchmark's data_v2/executable_functions",
        folder.display()
    )]
    Functions {
        /// The folder.
        folder: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The process that runs tools failed.
    #[error("cannot run the tools: {source}")]
    Runner {
        /// The error of the process.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl NestfulError {
    /// Whether a file or process failed, in which case no row is at fault.
    pub fn is_system_error(&self) -> bool {
        match self {
            Self::At { error, .. } => error.is_system_error(),
            Self::File(error) => error.is_system_error(),
            _ => false,
        }
    }

    /// Adds the line of the error.
    #[must_use]
    pub fn with_location(self, location: impl Into<String>) -> Self {
        Self::At {
            place: location.into(),
            error: Box::new(self),
        }
    }
}
