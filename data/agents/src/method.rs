//! The prompting methods, and the kinds of text that a model writes with them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::prompts::one_line;

/// How a model is prompted to call APIs.
///
/// # Source
///
/// GOAT, section 4.1: Global and ReACT, each with and without instruction decomposition (ID).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// A plan of API names, then the calls, then the answer.
    Global,
    /// Alternating thoughts and calls, until the answer.
    React,
    /// All sub-queries first, then a call for each, with its own documents.
    GlobalId,
    /// Alternating sub-queries and calls, until the answer.
    ReactId,
}

impl Method {
    /// The name used in configurations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::React => "react",
            Self::GlobalId => "global-id",
            Self::ReactId => "react-id",
        }
    }

    /// The retrieval text for a call.
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

/// The kind of a generated text, and of a training example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExampleKind {
    /// The names of the APIs to call.
    Plan,
    /// A call.
    Call,
    /// A thought with its call, or the answer.
    Step,
    /// Sub-queries: all at once, or the next one.
    Decompose,
    /// The answer.
    Final,
}

impl ExampleKind {
    /// The name used in configurations and row ids.
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
