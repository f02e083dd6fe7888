//! Why a turn cannot be learned as its row and its template have it.

use thiserror::Error;

use crate::budgets::ROW_STEPS;

/// A turn cannot be learned as the row has it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TurnError {
    /// Two assistant messages follow each other.
    #[error(
        "messages {message} and {} are both of the assistant: the first would be learned with an end \
         of turn, and the model would never write the second; write one message, with the thought in \
         reasoning_content, the text in content and the calls in tool_calls, or put the message \
         between them that was answered",
        message + 1
    )]
    TwoAssistants {
        /// The first of the two, from 0.
        message: usize,
    },

    /// A thought in the text of a message is not in the training text.
    #[error(
        "the chat template leaves out the thought in the content of message {message} ({tag}), so \
         that the model would answer without it; take the thought out of the row, or set \
         data.chat_template to a template that keeps it; most read it from reasoning_content"
    )]
    ThoughtLeftOut {
        /// The assistant message, from 0.
        message: usize,
        /// What opens the thought.
        tag: &'static str,
    },

    /// The template writes a thought of its own before the one in the text of a message.
    #[error(
        "message {message} has a thought in its content ({tag}), and the chat template writes another \
         one before it; move the thought from content to reasoning_content"
    )]
    ThoughtTwice {
        /// The assistant message, from 0.
        message: usize,
        /// What opens the thought.
        tag: &'static str,
    },

    /// What the template shows the model at inference is not how the training text begins.
    #[error(
        "the training text does not begin with the generation prompt before message {message}: \
         the template renders the conversation's start differently once the answer is there; use \
         a template whose training text continues its prompt"
    )]
    PromptNotAPrefix {
        /// The assistant message, from 0.
        message: usize,
    },

    /// The conversation has too many turns that are learned.
    #[error(
        "finding the turns takes more than {ROW_STEPS} steps of the chat template, because the \
         beginning of the conversation is rendered anew for each turn that is learned (ROW_STEPS in \
         docs/limits.md); learn fewer by mask.train_on, such as \"last-assistant\", or cut the \
         conversation into several rows"
    )]
    TooManyRenderings,
}
