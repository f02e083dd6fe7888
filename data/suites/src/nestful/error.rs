//! What keeps a row of NESTFUL, or a set of them, from being used.

use std::path::PathBuf;

use tooltune_rows::python::PythonJsonError;
use tooltune_rows::tools::ToolsError;

/// Why there is no row or no score. A bad prediction is never an error: it scores zero.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NestfulError {
    /// The fault belongs to one line of a file.
    #[error("{place}: {error}")]
    At {
        /// `file:line`.
        place: String,
        /// What is wrong there.
        error: Box<NestfulError>,
    },
    /// A file cannot be read, or has no rows.
    #[error(transparent)]
    File(#[from] ToolsError),
    /// A line, or a field that holds JSON as a text, is no JSON as Python reads it.
    #[error("{field} is not valid JSON: {error}; a row is one JSON object a line")]
    NotJson {
        /// The field, or `the line`.
        field: &'static str,
        /// What the parser says.
        error: PythonJsonError,
    },
    /// A field is not there.
    #[error(
        "field `{field}` is missing; a row has sample_id, input, output, tools and gold_answer, \
         a call name and arguments, a tool name and output_parameters"
    )]
    MissingField {
        /// Where the field should be, such as `output[2].name`.
        field: String,
    },
    /// A field holds another type than its format says.
    #[error("field `{field}` is {found}, but must be {expected}")]
    WrongType {
        /// Where the field is.
        field: String,
        /// Python's name of what is there.
        found: &'static str,
        /// What must be there.
        expected: &'static str,
    },
    /// The gold has no call, so that nothing can be compared with it.
    #[error("the gold has no calls; a row's output needs at least one")]
    EmptyGold,
    /// A set without samples has no mean.
    #[error("there is no sample to report; give at least one")]
    NoSamples,
    /// There are not as many predictions as rows.
    #[error("{n_predictions} predictions for {n_rows} rows; give one for each, in their order")]
    Unpaired {
        /// Rows.
        n_rows: usize,
        /// Predictions.
        n_predictions: usize,
    },
    /// A file of prompts has not the form of one.
    #[error("the prompts cannot be used: {reason}")]
    Prompts {
        /// What is wrong, and what is needed.
        reason: String,
    },
    /// A folder of functions has not the form of one.
    #[error(
        "{}: {reason}; give the benchmark's data_v2/executable_functions",
        folder.display()
    )]
    Functions {
        /// The folder.
        folder: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The process that runs tools cannot be used.
    #[error("the tools cannot be run: {source}")]
    Runner {
        /// What it says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl NestfulError {
    /// Adds the line that the fault belongs to.
    #[must_use]
    pub fn at(self, place: impl Into<String>) -> Self {
        Self::At {
            place: place.into(),
            error: Box::new(self),
        }
    }
}
