//! Generates texts with a first model on a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tooltune_template::{Conversation, Message, Role};

use super::rows::TextRow;
use crate::error::Error;
use crate::eval::endpoint_generator::EndpointGenerator;
use crate::eval::generate::FinishReason;
use crate::eval::generator::{Completion, GenerationRequest, PromptText};

/// The first model, which answers prompts.
#[derive(Debug)]
pub struct Upstream {
    /// The server.
    pub generator: EndpointGenerator,
    /// Number of parallel requests.
    pub concurrency: usize,
    /// Maximum tokens per answer.
    pub max_tokens: usize,
    /// Whether the work was stopped.
    pub is_stopped: Arc<AtomicBool>,
}

/// Reply of the first model to a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamReply {
    /// A text.
    Text {
        /// The text.
        text: String,
        /// Whether the text was cut off at the token limit.
        is_cut: bool,
    },
    /// The first model returned no text, for this reason.
    Nothing(String),
}

impl Upstream {
    /// Requests replies to the prompts of rows, in order. Returns `None` if the work was stopped.
    ///
    /// # Errors
    ///
    /// The server itself fails, not only single prompts.
    pub fn ask(&self, rows: &[&TextRow]) -> Result<Option<Vec<UpstreamReply>>, Error> {
        let conversation_of =
            |row: &&TextRow| Conversation::new(vec![Message::new(Role::User, row.text.as_str())]);
        let conversations: Vec<Conversation> = rows.iter().map(conversation_of).collect();
        let requests = rows.iter().zip(&conversations);
        let requests = requests.map(|(row, conversation)| GenerationRequest {
            id: &row.place,
            text: PromptText::Chat(conversation),
            max_new_tokens: self.max_tokens,
            constraint: None,
        });
        let requests: Vec<GenerationRequest<'_>> = requests.collect();
        let mut watch = |_| !self.is_stopped.load(Ordering::Relaxed);
        let completions = self
            .generator
            .write(&requests, &mut watch, &mut |_, _| Ok(()))?;
        Ok(completions.map(|completions| completions.into_iter().map(to_reply).collect()))
    }
}

fn to_reply(completion: Completion) -> UpstreamReply {
    let is_empty = completion.text.trim().is_empty();
    match (completion.error, completion.without_text) {
        (Some(error), _) => UpstreamReply::Nothing(error),
        (None, Some(instead)) => UpstreamReply::Nothing(format!(
            "the first model returned no text (finish_reason {:?}, {instead} instead)",
            completion.finish_reason
        )),
        (None, None) if is_empty => {
            UpstreamReply::Nothing("the first model returned an empty text".to_owned())
        }
        (None, None) => UpstreamReply::Text {
            is_cut: completion.finish_reason == FinishReason::Length.name(),
            text: completion.text,
        },
    }
}
