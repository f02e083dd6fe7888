//! Builds generation prompts from a row, from messages, or from plain text.
//!
//! The prompt of a row is the start of its training text. The row is an error if the template
//! renders a different generation prompt for the messages before the answer. If only the tokens
//! differ, [`TokenizedPrompt::begins_example`] is false.

use tooltune_template::conversation::Conversation;
use tooltune_template::{ChatTemplate, Turn, Turns};

use super::error::DataError;
use super::prepare::{PrepareOptions, encode, read};
use super::round_trip::check_round_trip;
use super::rows::Row;
use super::supervise::Supervisor;
use super::tokenizer::{Encoded, Specials, Tokenizer};

/// A prompt, with its reference answer if the row has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizedPrompt {
    /// Id of the row, or the name given by the caller.
    pub id: String,
    /// The whole text, including special tokens.
    pub text: String,
    /// The text as tokens.
    pub ids: Vec<u32>,
    /// Number of messages in the prompt.
    pub n_messages: usize,
    /// The answer from training: without special tokens, up to the end of the turn.
    pub reference: Option<String>,
    /// Whether the row's training example starts with exactly these tokens. It does not if a token
    /// crosses the boundary between prompt and answer.
    pub begins_example: bool,
}

impl TokenizedPrompt {
    /// Builds the prompt for the supervised answer of a row: the first turn of its completion, or
    /// the last turn if `mask.train_on` selects assistant turns.
    ///
    /// # Errors
    ///
    /// Every error names the row:
    ///
    /// - the options select no turn of the row
    /// - the template rejects the row, drops a part of it, or renders its prompt differently once
    ///   the answer is present
    /// - the answer does not end with a stop token, or the options have none
    /// - the tokens start with two begin-of-sequence tokens
    pub fn from_row(
        row: &Row,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        options: &PrepareOptions,
    ) -> Result<Self, DataError> {
        let work = || -> Result<Self, DataError> {
            let (rendered, encoded) = read(row, template, tokenizer, options)?;
            let turns = options.mask.train_on.turns();
            let supervised = rendered.turns.iter().filter(|turn| turn.weight > 0.0);
            let supervised: Vec<Turn> = supervised.copied().collect();
            let turn = turns.strict_turn(&supervised).ok_or(DataError::NoAnswer)?;
            let supervisor = Supervisor::new(&rendered, &encoded, tokenizer, options);
            let stop = supervisor.stop_token(&turn)?;
            let text = rendered.text[..turn.start].to_owned();
            let ids = encode(&text, template, tokenizer)?.ids;
            let begins_example = encoded.ids.starts_with(&ids);
            let answer = encoded.ids.get(ids.len()..stop);
            let reference = match answer.filter(|_| begins_example) {
                Some(answer) => tokenizer.decode(answer, Specials::Skip)?,
                None => rendered.text[turn.start..encoded.offsets[stop].0].to_owned(),
            };
            Ok(Self {
                id: row.id.clone(),
                text,
                ids,
                n_messages: turn.message,
                reference: Some(reference),
                begins_example,
            })
        };
        work().map_err(|error| error.at(&row.id))
    }

    /// Builds the prompt from all messages of a conversation without an answer.
    ///
    /// # Errors
    ///
    /// Every error names `id`:
    ///
    /// - the template rejects the conversation, or drops a part of it
    /// - the tokens start with two begin-of-sequence tokens
    pub fn from_messages(
        id: &str,
        conversation: &Conversation,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
    ) -> Result<Self, DataError> {
        let work = || -> Result<(String, Encoded), DataError> {
            // The result is not used; this call reports parts that the template drops.
            template.render_with_spans(conversation, Turns::Completion)?;
            let text = template.render_prompt(conversation)?;
            let encoded = encode(&text, template, tokenizer)?;
            check_round_trip(&text, &encoded, tokenizer)?;
            Ok((text, encoded))
        };
        let (text, encoded) = work().map_err(|error| error.at(id))?;
        Ok(Self::new(id, text, encoded, conversation.messages.len()))
    }

    /// Builds a prompt from plain text after the tokens that the tokenizer adds, such as `<s>`.
    /// They are not added twice if the text already starts with them ([`Tokenizer::plain_text`]).
    ///
    /// # Errors
    ///
    /// - the tokenizer has no token for a part of the text, or does not reproduce it
    pub fn from_text(id: &str, text: &str, tokenizer: &Tokenizer) -> Result<Self, DataError> {
        let work = || -> Result<(String, Encoded), DataError> {
            let text = tokenizer.plain_text(text)?;
            let encoded = tokenizer.encode(&text)?;
            check_round_trip(&text, &encoded, tokenizer)?;
            Ok((text, encoded))
        };
        let (text, encoded) = work().map_err(|error| error.at(id))?;
        Ok(Self::new(id, text, encoded, 0))
    }

    fn new(id: &str, text: String, encoded: Encoded, n_messages: usize) -> Self {
        Self {
            id: id.to_owned(),
            text,
            ids: encoded.ids,
            n_messages,
            reference: None,
            begins_example: true,
        }
    }
}
