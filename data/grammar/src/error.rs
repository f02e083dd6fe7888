//! What is refused before generation, and what can go wrong during it.

use tooltune_rows::text::DataError;

/// Why there is no grammar, or why a constraint does not go on.
#[derive(Debug, thiserror::Error)]
pub enum GrammarError {
    /// The tokenizer's tokens cannot be told as bytes.
    #[error("the tokenizer cannot be constrained: {reason}; generate without a constraint")]
    Tokenizer {
        /// What stands in the way.
        reason: String,
    },
    /// The tokenizer fails on a text.
    #[error(transparent)]
    Text(#[from] DataError),
    /// The schema is no schema, or asks for something that no grammar here enforces.
    #[error(
        "the schema cannot constrain generation: {}{why}",
        if pointer.is_empty() { String::new() } else { format!("{pointer} ") }
    )]
    Unsupported {
        /// JSON pointer to the keyword or the sub-schema; empty for the whole.
        pointer: String,
        /// Why it cannot be enforced, and how to fix it where that is possible.
        why: String,
    },
    /// A list of tools cannot be called.
    #[error("tools[{tool_idx}] {reason}")]
    Tool {
        /// The tool, from 0.
        tool_idx: usize,
        /// What is wrong and how to fix it.
        reason: String,
    },
    /// No tool is given.
    #[error("no tool is given, so no call can be made; give one, or generate without a constraint")]
    NoTool,
    /// The schema took too long, or more memory than a schema may.
    #[error("the schema is too large for a constraint: {reason}; simplify it")]
    TooLarge {
        /// Which limit was met.
        reason: String,
    },
    /// A token was chosen that the mask does not allow.
    #[error("token {token} ({text:?}) is not allowed here; choose among the tokens of the mask")]
    NotAllowed {
        /// The token's id.
        token: u32,
        /// Its text.
        text: String,
    },
    /// A token was chosen after the end of the turn.
    #[error("token {token} follows the end of the turn; nothing may")]
    AfterTheEnd {
        /// The token's id.
        token: u32,
    },
    /// A step met a limit of the parser, or no token can continue the text.
    #[error("the constraint cannot go on: {reason}; end the completion here, it is not complete")]
    Stuck {
        /// What the parser says.
        reason: String,
    },
}

impl GrammarError {
    pub(super) fn unsupported(pointer: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Unsupported {
            pointer: pointer.into(),
            why: why.into(),
        }
    }
}
