//! The four methods of prompting a model to call APIs: prompts, training examples and agent loops.
//!
//! [`Agent`] is a loop without a model: it emits requests (for documents, a text, or the result of
//! a call), and the caller feeds it the results. [`Expansion`] turns a trajectory into training
//! examples by replaying it through the same loop with gold answers. Training prompts are therefore
//! equal to inference prompts, and no other code builds prompts.
//!
//! ```
//! use serde_json::{Map, json};
//! use tooltune_agents::render_call;
//!
//! let arguments = Map::from_iter([("port".to_owned(), json!("Rye"))]);
//! let call = render_call("tide_at", &arguments);
//! assert_eq!(call.text, r#"{"name": "tide_at", "arguments": {"port": "Rye"}}"#);
//! ```

mod agent;
pub mod budgets;
mod call_spans;
mod call_text;
mod completions;
mod dialogue;
pub mod executors;
mod expansion;
pub mod flat;
mod method;
mod options;
mod outcome;
pub mod pairs;
mod prompts;
mod reading;
mod rows;
mod shown_documents;
mod shown_result;
mod text_schema;
pub mod truncation;

#[cfg(test)]
mod tests;

pub use agent::{Agent, AgentRequest};
pub use call_spans::{
    CallPart, CallSpan, CallsText, PathsTooLong, is_call_reference, render_calls, tokens_within,
};
pub use call_text::{CallText, MaskSpans, ValueSpan, mask_spans, render_call};
pub use dialogue::{dialogue_outcome, dialogue_prompt};
pub use expansion::{Expansion, GoatExample, Ranking};
pub use method::{ExampleKind, Method};
pub use options::{AgentLimits, Distractors, GoatOptions, KindWeights, LoopLimits};
pub use outcome::{AttemptedCall, EndReason, Failure, Outcome, Retrieval, TextEnd};
pub use rows::{GoatRows, goat_rows};
