//! Any metric from any language: one JSON object a line in, one out, in order.
//!
//! `{"id", "op", "input", "options"?}` becomes `{"id", "value"}` or `{"id", "error"}`, so that
//! predictions of any system can be scored and worked examples can be fed as they are.
//! A line that cannot be read never stops the stream: it gets an error with its number, the
//! later lines are scored, and [`Summary::n_malformed`] tells the caller to exit with status 3.
//!
//! Every operation is one entry of a table, one table for each suite.
//!
//! ```
//! use serde_json::json;
//! use tooltune_score::score_line;
//! use tooltune_suites::operations::Outside;
//!
//! let line = r#"{"id": 7, "op": "slot.parse", "input": {"raw": "[1, 2]"}}"#;
//! let scored = score_line(line, 1, &Outside::default());
//! assert_eq!(scored.outcome, Ok(json!(true)));
//! ```

mod data_operations;
mod error;
mod flat_operations;
mod pipeline_operations;
mod stream;

use tooltune_suites::SUITES;
use tooltune_suites::operations::Operation;

pub use error::StreamError;
pub use stream::{ScoreLine, Summary, score_line, score_stream};

/// Lists every operation, those of the suites first.
pub fn operations() -> impl Iterator<Item = &'static Operation> {
    let others = [
        pipeline_operations::TABLE,
        flat_operations::TABLE,
        data_operations::TABLE,
    ];
    let suites = SUITES.into_iter().map(|suite| suite.operations);
    suites.chain(others).flatten()
}
