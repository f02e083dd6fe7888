//! Says what can be wrong with a line that asks for a score.

use tooltune_agents::flat::FlatError;
use tooltune_agents::truncation::FilterError;

use crate::encoder::EncoderError;

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

impl From<EncoderError> for LineError {
    fn from(error: EncoderError) -> Self {
        Self::NoValue {
            kind: "encoder_failed",
            message: error.to_string(),
        }
    }
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

    /// Whether the line itself must be fixed, as opposed to the data that it carries.
    pub fn is_malformed(&self) -> bool {
        !matches!(self, Self::NoValue { .. })
    }
}

impl From<FlatError> for LineError {
    fn from(error: FlatError) -> Self {
        Self::NoValue {
            kind: error.kind(),
            message: error.to_string(),
        }
    }
}

impl From<FilterError> for LineError {
    fn from(error: FilterError) -> Self {
        let kind = match error {
            FilterError::Refused { .. } => "bad_expression",
            FilterError::TooLarge { .. } => "too_large",
        };
        Self::NoValue {
            kind,
            message: error.to_string(),
        }
    }
}
