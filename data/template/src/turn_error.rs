//! Reasons why a turn cannot be trained on with its row and template.

use thiserror::Error;

use crate::budgets::ROW_STEPS;

/// A turn cannot be trained on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TurnError {
    /// Two assistant messages follow each other.
    #[error(
        "messages {message} and {} are both assistant messages: the model would learn to end its \
         turn after the first and never write the second; merge them into one message, with the \
         thought in reasoning_content, the text in content and the calls in tool_calls, or insert \
         the missing message between them",
        message + 1
    )]
    TwoAssistants {
        /// The first of the two, from 0.
        message: usize,
    },

    /// A thought in the text of a message is missing from the training text.
    #[error(
        "the chat template leaves out the thought in the content of message {message} ({tag}), so \
         the model would answer without it; remove the thought from the row, or set \
         data.chat_template to a template that keeps it; most templates read it from \
         reasoning_content"
    )]
    ThoughtLeftOut {
        /// The assistant message, from 0.
        message: usize,
        /// The opening tag of the thought.
        tag: &'static str,
    },

    /// The template writes a thought before the thought in the text of a message.
    #[error(
        "message {message} has a thought in its content ({tag}), and the chat template writes \
         another one before it; move the thought from content to reasoning_content"
    )]
    ThoughtTwice {
        /// The assistant message, from 0.
        message: usize,
        /// The opening tag of the thought.
        tag: &'static str,
    },

    /// The training text does not begin with the prompt that the model sees at inference.
    #[error(
        "the training text does not begin with the generation prompt before message {message}: \
         the template renders the start of the conversation differently once the answer exists; \
         use a template whose training text continues its prompt"
    )]
    PromptNotAPrefix {
        /// The assistant message, from 0.
        message: usize,
    },

    /// The conversation has too many trained turns.
    #[error(
        "finding the turns takes more than {ROW_STEPS} steps of the chat template, because the \
         start of the conversation is rendered again for each turn that is trained on (ROW_STEPS \
         in docs/limits.md); train on fewer turns with mask.train_on, such as \"last-assistant\", \
         or split the conversation into several rows"
    )]
    TooManyRenderings,
}
