//! Prompts to the texts of a first model, behind an endpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tooltune_rows::text::{Conversation, Message, Role};

use super::rows::TextRow;
use crate::error::Error;
use crate::eval::endpoint_generator::EndpointGenerator;
use crate::eval::generate::FinishReason;
use crate::eval::generator::{Completion, GenerationRequest, PromptText};

/// A first model, which answers prompts.
#[derive(Debug)]
pub struct Upstream {
    /// The server.
    pub generator: EndpointGenerator,
    /// Requests at once.
    pub concurrency: usize,
    /// Tokens that an answer may have.
    pub max_tokens: usize,
    /// Whether the work is given up.
    pub is_stopped: Arc<AtomicBool>,
}

/// What the first model said to a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// A text, and whether the server cut it.
    Text {
        /// The text.
        text: String,
        /// Whether its limit of tokens ended it.
        is_cut: bool,
    },
    /// Nothing, and why.
    Nothing(String),
}

impl Upstream {
    /// The answers to the prompts of rows, in their order; `None` where the work is given up.
    ///
    /// # Errors
    ///
    /// A server whose faults are not those of single prompts.
    pub fn ask(&self, rows: &[&TextRow]) -> Result<Option<Vec<Said>>, Error> {
        let of =
            |row: &&TextRow| Conversation::new(vec![Message::new(Role::User, row.text.as_str())]);
        let conversations: Vec<Conversation> = rows.iter().map(of).collect();
        let requests = rows.iter().zip(&conversations);
        let requests = requests.map(|(row, conversation)| GenerationRequest {
            id: &row.place,
            text: PromptText::Chat(conversation),
            max_new_tokens: self.max_tokens,
            constraint: None,
        });
        let requests: Vec<GenerationRequest<'_>> = requests.collect();
        let mut watch = |_| !self.is_stopped.load(Ordering::Relaxed);
        let written = self
            .generator
            .write(&requests, &mut watch, &mut |_, _| Ok(()))?;
        Ok(written.map(|written| written.into_iter().map(said).collect()))
    }
}

fn said(written: Completion) -> Said {
    let is_empty = written.text.trim().is_empty();
    match (written.error, written.without_text) {
        (Some(error), _) => Said::Nothing(error),
        (None, Some(instead)) => Said::Nothing(format!(
            "the first model gave no text (finish_reason {:?}, {instead} instead)",
            written.finish_reason
        )),
        (None, None) if is_empty => Said::Nothing("the first model gave an empty text".to_owned()),
        (None, None) => Said::Text {
            is_cut: written.finish_reason == FinishReason::Length.name(),
            text: written.text,
        },
    }
}
