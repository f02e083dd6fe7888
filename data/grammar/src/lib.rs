//! Constrains generation to a JSON Schema or to calls of given tools.
//!
//! A [`Vocabulary`] contains the bytes of each token. A [`Grammar`] is compiled from a schema or
//! from tools before generation. A [`Constraint`] follows one completion: it computes a [`Mask`]
//! over the logits of each step and consumes the chosen token.
//!
//! The parser is llguidance's. A schema is first rewritten into the part of JSON Schema that
//! llguidance enforces exactly. If that is impossible, the schema is refused with a JSON pointer,
//! because a constraint that is silently weaker than its schema is worse than none. No token
//! grammar can guarantee that a completion is not truncated at the token limit, so callers must
//! validate the finished text.
//!
//! ```
//! use serde_json::json;
//! use tooltune_grammar::CallFormat;
//!
//! let tool = json!({"name": "tide_at", "parameters": {"type": "object", "properties": {"port": {"type": "string"}}}});
//! let schema = CallFormat::Plain.server_schema(&[tool])?;
//! assert!(schema.is_some_and(|schema| schema.to_string().contains("tide_at")));
//! # Ok::<(), tooltune_grammar::GrammarError>(())
//! ```

pub mod budgets;
mod calls;
mod compile;
mod constraint;
mod error;
mod forbidden_substrings;
mod lower;
mod options;
mod position;
mod probe;
mod ranges;
mod schema;
mod token_bytes;
mod vocabulary;
mod write;

#[cfg(test)]
mod tests;

pub use calls::{CallFormat, SequenceFormat};
pub use compile::Grammar;
pub use constraint::{Constraint, Mask};
pub use error::GrammarError;
pub use options::{Formats, GrammarOptions, Keys, Layout, Lengths};
pub use schema::{MAX_CHARACTERS, MAX_ENTRIES};
pub use vocabulary::Vocabulary;
