//! What can be wrong with a line, and with the stream as a whole.

use std::io;

/// Why a line has no value. [`LineError::kind`] is the stable name that a script tests for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The line is not UTF-8, not one JSON text, or no JSON object.
    #[error("{reason}; each line must be one JSON object with `op` and `input`")]
    MalformedLine {
        /// What is wrong with the text.
        reason: String,
    },
    /// No operation has this name.
    #[error("unknown operation `{op}`; `tooltune score --ops` lists all")]
    UnknownOp {
        /// The name on the line.
        op: String,
    },
    /// A field that the operation needs is absent.
    #[error("field `{field}` is missing")]
    MissingField {
        /// Path of the field, such as `input.rows[3].raw`.
        field: String,
    },
    /// A field holds a value of the wrong type, or an option an unknown choice.
    #[error("field `{field}` must be {expected}")]
    WrongType {
        /// Path of the field.
        field: String,
        /// What it must hold.
        expected: &'static str,
    },
    /// The line is well formed but the operation has no value for it.
    #[error("{message}")]
    NoValue {
        /// Stable name of the reason, such as `bad_schema`.
        kind: &'static str,
        /// The reason in words.
        message: String,
    },
}

impl LineError {
    /// Stable name of what is wrong.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::MalformedLine { .. } => "malformed_line",
            Self::UnknownOp { .. } => "unknown_op",
            Self::MissingField { .. } => "missing_field",
            Self::WrongType { .. } => "wrong_type",
            Self::NoValue { kind, .. } => kind,
        }
    }

    /// Whether the line itself must be mended, as opposed to the data that it carries.
    pub fn is_malformed(&self) -> bool {
        !matches!(self, Self::NoValue { .. })
    }
}

/// Why a stream could not be scored to its end.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The input broke off.
    #[error("line {line_no}: the input cannot be read: {source}")]
    Read {
        /// The line that was being read, from 1.
        line_no: usize,
        /// The cause.
        source: io::Error,
    },
    /// The output is closed or full.
    #[error("line {line_no}: the score cannot be written: {source}")]
    Write {
        /// The line whose score was being written, from 1.
        line_no: usize,
        /// The cause.
        source: io::Error,
    },
}
