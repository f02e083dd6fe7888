//! Scores tool calls in conversations: rows of messages with tools, turn by turn.
//!
//! [`calls_items`] lists the turns of a row that a model must produce. The prompt of each turn is
//! the row's original history before it ([`CallsItem::prompt`]), so a wrong answer affects only one
//! turn. [`read_calls`] parses the calls of an answer in the notation of any model family, and
//! [`CallsAnswer::from_server`] converts calls parsed by a server. If the model's prompt had
//! flattened tools, [`CallsAnswer::unflatten`] restores the nested arguments.
//!
//! [`CallsScorer::score_turn`] pairs expected with predicted calls in any order, exact matches
//! first, and compares arguments under the tool's schema. Values are compared by type, so 5 equals
//! 5.0. A missing argument equals its default. An argument that is neither in the tool nor in the
//! gold answer is wrong. [`CallsSummary`] aggregates the turns. The gold answer is scored like any
//! other answer ([`CallsItem::gold_answer`]). [`ceilings`](crate::ceilings) lists the metrics for
//! which the score of the gold answer is not perfect, for example because its calls violate their
//! schema.
//!
//! Strings are compared exactly. BFCL's checker ignores case, whitespace and some punctuation, so
//! it accepts `new york` for `New York`, although a server would receive a different value.
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
//! assert_eq!(score.faults[0].message, "tide.days is \"1\", but is not expected");
//! # Ok::<(), serde_json::Error>(())
//! ```

mod answer;
mod item;
mod leaf_errors;
mod operations;
mod pairing;
mod read;
mod rejection;
mod retries;
mod same;
mod score;
mod suite;
mod summary;
mod template;
mod tools;

#[cfg(test)]
mod tests;

pub use answer::{AnswerEnd, CallsAnswer, WrittenCall};
pub use item::{CallsItem, SkippedTurns, TurnSelection, WhichTurns, calls_items};
pub(crate) use read::without_reasoning;
pub use read::{CallDialect, MAX_CALLS, MAX_TEXT_BYTES, read_calls};
pub use rejection::CallRejection;
pub use retries::RetrySummary;
pub use score::{CallScore, CallsScorer, Fault, Rule, TurnScore, score_turn};
pub use suite::SUITE;
pub use summary::{CallGroup, CallsMetrics, CallsSummary, TurnGroup, calls_table};
pub use template::TemplateCalls;
pub use tools::ToolSet;
