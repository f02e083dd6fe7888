//! Scores calls of tools in conversations: rows of messages with tools, turn by turn.
//!
//! [`calls_items`] lists the turns of a row that are asked. The prompt of each is the row's own
//! history before it ([`CallsItem::prompt`]), so that one wrong answer costs one turn.
//! [`read_calls`] finds the calls of an answer in whatever way its family writes them,
//! [`CallsAnswer::of_server`] takes those that a server has read, and where a model was shown flat
//! tools [`CallsAnswer::unflattened`] nests the arguments again. [`CallsScorer::score_turn`] pairs
//! wanted calls with made ones in any order, exact ones first, and compares arguments under the
//! tool's schema: values by type, 5 and 5.0 equal, an absent argument equal to its default, and one
//! that the tool or the gold does not have wrong. [`CallsSummary`] sums up.
//! The gold is scored like any answer ([`CallsItem::gold_answer`]); [`ceilings`](crate::ceilings) names
//! the metrics in which it is not the best, such as where its calls break their schema.
//! The decision to question: texts are compared as they are. BFCL's checker ignores case, blanks and
//! some punctuation, so that it passes `new york` for `New York`; what a server gets is not the same.
//!
//! ```
//! use std::sync::Arc;
//!
//! use serde_json::json;
//! use tooltune_suites::calls::{CallsItem, ToolSet, WrittenCall, read_calls, score_turn};
//!
//! let tools = [json!({"name": "tide", "parameters": {"type": "object", "properties": {
//!     "port": {"type": "string"}, "days": {"type": "integer", "default": 1}}}})];
//! let item = CallsItem {
//!     id: "dev.jsonl:1#1".to_owned(),
//!     message: 1,
//!     gold: vec![serde_json::from_value::<WrittenCall>(
//!         json!({"name": "tide", "arguments": {"port": "Rye"}}),
//!     )?],
//!     tools: Arc::new(ToolSet::new(&tools)),
//! };
//! let answer = r#"<tool_call>{"name": "tide", "arguments": {"port": "Rye", "days": 1.0}}</tool_call>"#;
//! assert!(score_turn(&item, &read_calls(answer, &item.tools)).right);
//! let answer = r#"{"name": "tide", "parameters": {"port": "Rye", "days": "1"}}"#;
//! let score = score_turn(&item, &read_calls(answer, &item.tools));
//! assert_eq!(score.faults[0].message, "tide.days is \"1\", and is not wanted");
//! # Ok::<(), serde_json::Error>(())
//! ```

mod answer;
mod item;
mod operations;
mod pairing;
mod read;
mod same;
mod score;
mod suite;
mod summary;
mod tools;

#[cfg(test)]
mod tests;

pub use answer::{CallsAnswer, WrittenCall};
pub use item::{AskedTurns, CallsItem, SkippedTurns, WhichTurns, calls_items};
pub use read::{CallDialect, MAX_CALLS, MAX_TEXT_BYTES, read_calls};
pub use score::{CallScore, CallsScorer, Fault, Rule, TurnScore, score_turn};
pub use suite::SUITE;
pub use summary::{CallGroup, CallsMetrics, CallsSummary, TurnGroup, calls_table};
pub use tools::ToolSet;
