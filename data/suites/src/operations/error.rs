//! Errors of a line that requests a score.

use tooltune_agents::flat::FlatError;
use tooltune_agents::truncation::FilterError;

use crate::encoder::EncoderError;

/// Why a line has no value. Scripts can test for the stable name [`LineError::kind`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The line is not valid UTF-8, not a single JSON value, or not a JSON object.
    #[error("{reason}; write one JSON object with `op` and `input` per line")]
    MalformedLine {
        /// What is wrong with the line.
        reason: String,
    },
    /// No operation has this name.
    #[error("unknown operation `{op}`; list the operations with `tooltune score --ops`")]
    UnknownOp {
        /// The requested name.
        op: String,
    },
    /// A required field is missing.
    #[error("field `{field}` is missing; add it")]
    MissingField {
        /// Path of the field, such as `input.rows[3].raw`.
        field: String,
    },
    /// A field has the wrong type, or an option has an unknown value.
    #[error("field `{field}` must be {expected}")]
    WrongType {
        /// Path of the field.
        field: String,
        /// The expected type or values.
        expected: &'static str,
    },
    /// The line is well formed, but the operation cannot compute a value.
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
    /// Stable name of the error.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::MalformedLine { .. } => "malformed_line",
            Self::UnknownOp { .. } => "unknown_op",
            Self::MissingField { .. } => "missing_field",
            Self::WrongType { .. } => "wrong_type",
            Self::NoValue { kind, .. } => kind,
        }
    }

    /// Whether the line itself is malformed, rather than the data in it.
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
