//! Says which tokens may come next under a JSON Schema, or under the tools that a model may call.
//!
//! A [`Vocabulary`] says which bytes each token writes, a [`Grammar`] is compiled from a schema or
//! from tools before anything is generated, and a [`Constraint`] follows one completion: it gives
//! a [`Mask`] over the logits of each step and takes the token that was chosen.
//!
//! The parsing is llguidance's. The decision to question: a schema is rewritten first into the
//! part of JSON Schema that llguidance enforces exactly, and refused with its place where that is
//! not possible, because a constraint that is silently weaker than its schema is worth less than
//! none. What no grammar over tokens can promise, such as a completion that is cut at the limit of
//! tokens, is left to whoever validates the finished text.
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

mod calls;
mod compile;
mod constraint;
mod error;
mod lower;
mod options;
mod place;
mod probe;
mod ranges;
mod schema;
mod token_bytes;
mod unwritten;
mod vocabulary;
mod write;

#[cfg(test)]
mod tests;

pub use calls::{CallFormat, SequenceFormat};
pub use compile::Grammar;
pub use constraint::{Constraint, Mask};
pub use error::GrammarError;
pub use options::{Formats, GrammarOptions, Keys, Layout, Lengths};
pub use schema::{MOST_CHARACTERS, MOST_ENTRIES};
pub use vocabulary::Vocabulary;
