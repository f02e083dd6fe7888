//! What can be wrong with any file of JSON rows, whatever its rows are.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::json::{DuplicateKey, OversizedInteger};
use crate::lines::{ForeignFile, TooLong};
use crate::tools::kind_of;

/// A fault that every reader of rows can meet; the errors of each reader hold it as it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A file cannot be opened, read or decompressed.
    #[error("{}: cannot read: {error}; check {check}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
        /// What may be at fault.
        check: &'static str,
    },

    /// A line, or a document that is read whole, has no end in sight.
    #[error(transparent)]
    TooLong(#[from] TooLong),

    /// A file is known to be something else than text.
    #[error(transparent)]
    Foreign(#[from] ForeignFile),

    /// A row has two values of one name.
    #[error(transparent)]
    DuplicateKey(#[from] DuplicateKey),

    /// An integer would be learned as another number.
    #[error(transparent)]
    OversizedInteger(#[from] OversizedInteger),

    /// A field that is needed is not there.
    #[error("field {field:?} is missing; {needed}")]
    MissingField {
        /// Where the field should be, such as `messages[2].content`.
        field: String,
        /// What the format needs.
        needed: &'static str,
    },

    /// A field holds another type than its format says.
    #[error("{field} is {found}, but must be {expected}")]
    WrongType {
        /// Where the field is, such as `messages[2].content`.
        field: String,
        /// What is there.
        found: &'static str,
        /// What must be there.
        expected: &'static str,
    },
}

impl ReadError {
    /// A file of plain text that cannot be read.
    pub(crate) fn unreadable(path: &Path, error: io::Error) -> Self {
        Self::Unreadable {
            path: path.to_owned(),
            error,
            check: "the path and the access rights",
        }
    }

    /// A file, compressed perhaps, that cannot be read.
    pub fn unreadable_or_cut(path: &Path, error: io::Error) -> Self {
        Self::Unreadable {
            path: path.to_owned(),
            error,
            check: "the path, the access rights and that a .gz file is whole",
        }
    }

    /// A field that is needed and not there; `needed` says what the row needs.
    pub fn missing(field: impl Into<String>, needed: &'static str) -> Self {
        Self::MissingField {
            field: field.into(),
            needed,
        }
    }

    pub(crate) fn wrong_type(field: &str, found: &Value, expected: &'static str) -> Self {
        Self::WrongType {
            field: field.to_owned(),
            found: kind_of(found),
            expected,
        }
    }

    /// Whether the message names the file.
    pub(crate) fn names_its_file(&self) -> bool {
        matches!(self, Self::Unreadable { .. } | Self::Foreign(_))
    }

    /// The fault with another name for its field.
    #[must_use]
    pub(crate) fn with_field(mut self, rename: impl FnOnce(&str) -> String) -> Self {
        match &mut self {
            Self::MissingField { field, .. }
            | Self::WrongType { field, .. }
            | Self::OversizedInteger(OversizedInteger { field, .. }) => *field = rename(field),
            _ => {}
        }
        self
    }
}
