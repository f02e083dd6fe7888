//! Errors from scoring a SLOT row or data set.

use crate::budgets::COMPARED_LEAVES;

use crate::encoder::EncoderError;

/// An error that prevents scoring. A bad completion is never an error: it scores zero.
#[derive(Debug, thiserror::Error)]
pub enum ScoreError {
    /// The row's JSON Schema is unusable: it is malformed, or has a reference to a missing or
    /// external target.
    #[error("invalid JSON schema: {reason}; fix the row's `json_schema`")]
    Schema {
        /// The error and its location in the schema.
        reason: String,
    },
    /// A row of a data set cannot be scored.
    #[error("row {row_idx}: {source}")]
    Row {
        /// Index of the row, from 0.
        row_idx: usize,
        /// The error of the row.
        source: Box<ScoreError>,
    },
    /// A data set without rows has no mean.
    #[error("the data set has no rows; provide at least one")]
    EmptyDataset,
    /// The similarity of texts could not be computed.
    #[error(transparent)]
    Encoder(#[from] EncoderError),
    /// The vectors of the differing leaves would need too much memory.
    #[error(
        "{n} leaves differ from the gold value, but similarity is limited to {COMPARED_LEAVES} leaves; \
         split the value (COMPARED_LEAVES in docs/limits.md)"
    )]
    TooManyLeaves {
        /// Number of leaves at equal paths whose texts differ.
        n: usize,
    },
}
