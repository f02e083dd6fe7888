//! Scores SLOT: a completion against a JSON Schema and a gold object.
//!
//! Schema accuracy is the fraction of raw completions that are a single JSON value valid under the
//! row's schema. Content similarity compares the values at equal paths by sentence embedding. The
//! two metrics are independent: as in the paper's Table 3, a completion that violates the schema
//! can still score similarity. Embeddings are lenient (the similarity of `1887` and `1888` is 0.7),
//! so exact-match F1 is also reported.

mod dataset;
mod error;
mod operations;
mod report;
mod row;
mod schema_check;
mod similarity;
mod suite;

pub use super::bootstrap::Estimate;
pub use super::leaves::{leaves, scalar_text};
pub use dataset::{
    ComplexityScore, DatasetScore, DepthScore, GroupMean, SlotRow, score_dataset, slot_means,
};
pub use error::ScoreError;
pub use report::{Cell, ReportRow, before_after_rows, markdown_table};
pub use row::{Metrics, RowScore, score_row};
pub use schema_check::{SchemaChecker, SchemaMode, Violation};
pub use similarity::{Agreement, content_agreement, value_similarity};
pub use suite::SUITE;
