//! Scores SLOT: a completion beside a JSON Schema and a gold object.
//!
//! Schema accuracy asks whether the raw completion is one JSON text that is valid under the row's
//! schema; content similarity compares the values at equal paths by sentence embedding.
//! The two are independent: a completion that breaks the schema still earns similarity, as in
//! the paper's Table 3, so a low schema accuracy beside a high similarity is no contradiction.
//! Embeddings are lenient (`1887` and `1888` are .7 alike), which is why exact-match F is
//! reported beside them.

mod dataset;
mod error;
mod leaves;
mod operations;
mod report;
mod row;
mod schema_check;
mod similarity;
mod suite;

pub use super::bootstrap::Estimate;
pub use dataset::{
    ComplexityScore, DatasetScore, DepthScore, GroupMean, SlotRow, score_dataset, slot_means,
};
pub use error::ScoreError;
pub use leaves::{leaves, scalar_text};
pub use report::{Cell, ReportRow, before_after_rows, markdown_table};
pub use row::{Metrics, RowScore, score_row};
pub use schema_check::{SchemaChecker, SchemaMode, Violation};
pub use similarity::{Agreement, content_agreement, value_similarity};
pub use suite::SUITE;
