//! Errors of generated and imported questions.

use std::path::PathBuf;

use tooltune_apis::ToolsError;

/// Why no questions can be generated or imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SynthError {
    /// A file or one of its lines cannot be read.
    #[error(transparent)]
    File(#[from] ToolsError),
    /// A file has no responses.
    #[error("{}: no responses; write one JSON value per line", path.display())]
    NoResponses {
        /// The file.
        path: PathBuf,
    },
    /// Two responses have the same id.
    #[error("{place}: the response_id {id:?} occurs twice; ids must differ")]
    DuplicateId {
        /// `file:line` of the second.
        place: String,
        /// The id.
        id: String,
    },
    /// A template is invalid.
    #[error("{place}: {reason}")]
    Template {
        /// The file.
        place: String,
        /// What is wrong and how to fix it.
        reason: String,
    },
    /// An option is invalid.
    #[error("{reason}")]
    Option {
        /// What is wrong and how to fix it.
        reason: String,
    },
    /// A published file has another layout.
    #[error("{place}: {reason}; expected {expected}")]
    Layout {
        /// The file, with the number of the entry.
        place: String,
        /// What is wrong.
        reason: String,
        /// The expected content.
        expected: &'static str,
    },
}
