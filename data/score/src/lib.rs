//! Computes metrics over JSON Lines: each input line gives one output line, in order.
//!
//! `{"id", "op", "input", "options"?}` becomes `{"id", "value"}` or `{"id", "error"}`, so any
//! system can score its predictions, and worked examples can be used unchanged. An invalid line
//! never stops the stream: its output is an error with the line number, the lines after it are
//! scored, and [`Summary::n_malformed`] tells the caller to exit with status 3.
//!
//! Every operation is an entry in the table of its suite.
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

/// All operations; the operations of the suites come first.
pub fn operations() -> impl Iterator<Item = &'static Operation> {
    let other_operations = [
        pipeline_operations::TABLE,
        flat_operations::TABLE,
        data_operations::TABLE,
    ];
    let suites = SUITES.iter().map(|suite| suite.operations);
    suites.chain(other_operations).flatten()
}
