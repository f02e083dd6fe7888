//! The prompting methods, and the kinds of texts that a model writes under them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::prompts::one_line;

/// How a model is prompted to call APIs.
///
/// # Source
///
/// GOAT, section 4.1: Global and ReACT, each alone and with instruction decomposition (ID).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// A plan of names, then call after call, then the answer.
    Global,
    /// A thought with a call in turns, until the answer.
    React,
    /// Sub-queries first, then a call for each, with documents of its own.
    GlobalId,
    /// A sub-query and its call in turns, until the answer.
    ReactId,
}

impl Method {
    /// The method as configurations spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::React => "react",
            Self::GlobalId => "global-id",
            Self::ReactId => "react-id",
        }
    }

    /// The text that documents for a call are retrieved with.
    pub fn retrieval_text(self, query: &str, sub_query: &str) -> String {
        if self.decomposes() {
            one_line(sub_query)
        } else {
            query.to_owned()
        }
    }

    /// Whether documents are retrieved with sub-queries instead of the query.
    pub fn decomposes(self) -> bool {
        matches!(self, Self::GlobalId | Self::ReactId)
    }
}

/// A kind of text that a model writes, and so of training example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExampleKind {
    /// The names of the APIs to call.
    Plan,
    /// One call.
    Call,
    /// A thought with its call, or the answer.
    Step,
    /// Sub-queries: all at once, or the next one.
    Decompose,
    /// The answer.
    Final,
}

impl ExampleKind {
    /// The kind as configurations and row ids spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Call => "call",
            Self::Step => "step",
            Self::Decompose => "decompose",
            Self::Final => "final",
        }
    }
}
