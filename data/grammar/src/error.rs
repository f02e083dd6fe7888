//! Errors before and during constrained generation.

use tooltune_rows::text::DataError;

/// Why a grammar cannot be built, or why a constraint cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum GrammarError {
    /// The bytes of the tokenizer's tokens cannot be determined.
    #[error("the tokenizer cannot be constrained: {reason}; generate without a constraint")]
    Tokenizer {
        /// The cause.
        reason: String,
    },
    /// The tokenizer fails on a string.
    #[error(transparent)]
    Text(#[from] DataError),
    /// The schema is invalid, or has a condition that constraints cannot enforce.
    #[error(
        "the schema cannot constrain generation: {}{why}",
        if pointer.is_empty() { String::new() } else { format!("{pointer} ") }
    )]
    Unsupported {
        /// JSON pointer to the keyword or subschema; empty for the whole schema.
        pointer: String,
        /// Why it cannot be enforced, and how to fix it if possible.
        why: String,
    },
    /// A tool definition is invalid.
    #[error("tools[{tool_idx}] {reason}")]
    Tool {
        /// Index of the tool, from 0.
        tool_idx: usize,
        /// The problem and the fix.
        reason: String,
    },
    /// The list of tools is empty.
    #[error("no tool is given; give at least one, or generate without a constraint")]
    NoTool,
    /// The schema exceeds the time limit or a size limit.
    #[error("the schema is too large for a constraint: {reason}; simplify it")]
    TooLarge {
        /// The exceeded limit.
        reason: String,
    },
    /// The chosen token is not in the mask.
    #[error("token {token} ({text:?}) is not allowed here; choose among the tokens of the mask")]
    NotAllowed {
        /// The token's ID.
        token: u32,
        /// The token's text.
        text: String,
    },
    /// A token was chosen after the end of the turn.
    #[error("token {token} comes after the end-of-turn token; stop generating there")]
    AfterTheEnd {
        /// The token's ID.
        token: u32,
    },
    /// A step exceeded a limit of the parser, or no token can continue the completion.
    #[error("the constraint cannot continue: {reason}; end the incomplete completion here")]
    Stuck {
        /// The parser's message.
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
