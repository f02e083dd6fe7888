//! What can keep a SLOT row or data set from being scored.

use tooltune_rows::budgets::COMPARED_LEAVES;

use crate::encoder::EncoderError;

/// Why there is no score. A bad completion is never an error: it scores zero.
#[derive(Debug, thiserror::Error)]
pub enum ScoreError {
    /// The row's schema is no usable JSON Schema: malformed, or with a reference that leads
    /// nowhere or outside the schema.
    #[error("the JSON schema cannot be used: {reason}; fix the row's `json_schema`")]
    Schema {
        /// The fault and its place in the schema.
        reason: String,
    },
    /// A row of a data set cannot be scored.
    #[error("row {row_idx}: {source}")]
    Row {
        /// Position of the row, from 0.
        row_idx: usize,
        /// What is wrong with it.
        source: Box<ScoreError>,
    },
    /// A data set without rows has no mean.
    #[error("the data set has no rows; give at least one")]
    EmptyDataset,
    /// The texts could not be compared by their likeness.
    #[error(transparent)]
    Encoder(#[from] EncoderError),
    /// Comparing the texts of so many leaves would fill the memory with their vectors.
    #[error(
        "{n} leaves differ from the gold value's; at most {COMPARED_LEAVES} are compared by their \
         likeness (COMPARED_LEAVES in docs/limits.md)"
    )]
    TooManyLeaves {
        /// Leaves at one place of both values whose texts differ.
        n: usize,
    },
}
