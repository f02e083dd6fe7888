//! What a model is asked: a row up to the answer that training gave it, messages, or a plain text.
//!
//! The decision to question: the prompt of a row is cut from its training text, which is held to
//! begin with the template's own generation prompt. So what is asked is what was learned from, or
//! the row is an error; where only the tokens differ, [`AskedPrompt::begins_example`] says so.

use super::conversation::Conversation;
use super::error::DataError;
use super::given_back::must_give_back;
use super::prepare::{PrepareOptions, encode, read};
use super::rows::Row;
use super::supervise::Supervisor;
use super::template::{ChatTemplate, Turn, Turns};
use super::tokenizer::{Encoded, Specials, Tokenizer};

/// A prompt, and the answer to it where a row has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskedPrompt {
    /// The row, or what the caller named it.
    pub id: String,
    /// The whole text, special tokens included.
    pub text: String,
    /// The text as tokens.
    pub ids: Vec<u32>,
    /// Messages that are part of it.
    pub n_messages: usize,
    /// What training teaches to write: without special tokens, up to the end of the turn.
    pub reference: Option<String>,
    /// Whether the row's training example begins with these very tokens. It does not where a token
    /// crosses the border between prompt and answer.
    pub begins_example: bool,
}

impl AskedPrompt {
    /// The prompt of the answer that a row teaches: of the first turn of its completion, or of the
    /// last turn where `mask.train_on` chooses turns of the assistant.
    ///
    /// # Errors
    ///
    /// Each names the row:
    ///
    /// - the row has no turn that the options choose
    /// - the template refuses the row, leaves a part of it out, or renders its prompt differently
    ///   once the answer is there
    /// - the answer does not end with a stop token, or the options have none
    /// - the tokens begin with two begin-of-sequence tokens
    pub fn of_row(
        row: &Row,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        options: &PrepareOptions,
    ) -> Result<Self, DataError> {
        let work = || -> Result<Self, DataError> {
            let (rendered, encoded) = read(row, template, tokenizer, options)?;
            let turns = options.mask.train_on.turns();
            let learned = rendered.turns.iter().filter(|turn| turn.weight > 0.0);
            let learned: Vec<Turn> = learned.copied().collect();
            let turn = turns.strict(&learned).ok_or(DataError::NoAnswer)?;
            let supervisor = Supervisor {
                rendered: &rendered,
                encoded: &encoded,
                mask: &options.mask,
                stop_ids: &options.stop_ids,
                tokenizer,
            };
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

    /// All messages of a conversation, for which there is no answer yet.
    ///
    /// # Errors
    ///
    /// Each names `id`:
    ///
    /// - the template refuses the conversation, or leaves a part of it out
    /// - the tokens begin with two begin-of-sequence tokens
    pub fn of_messages(
        id: &str,
        conversation: &Conversation,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
    ) -> Result<Self, DataError> {
        let work = || -> Result<(String, Encoded), DataError> {
            // What it renders is not asked for, but what it leaves out is refused.
            template.render_with_spans(conversation, Turns::Completion)?;
            let text = template.render_prompt(conversation)?;
            let encoded = encode(&text, template, tokenizer)?;
            must_give_back(&text, &encoded, tokenizer)?;
            Ok((text, encoded))
        };
        let (text, encoded) = work().map_err(|error| error.at(id))?;
        Ok(Self::new(id, text, encoded, conversation.messages.len()))
    }

    /// A plain text, after the tokens that the tokenizer puts before plain texts, such as `<s>`:
    /// once, whether they are written in it or not ([`Tokenizer::plain_text`]).
    ///
    /// # Errors
    ///
    /// - the tokenizer has no token for a piece of the text, or does not give it back
    pub fn of_text(id: &str, text: &str, tokenizer: &Tokenizer) -> Result<Self, DataError> {
        let work = || -> Result<(String, Encoded), DataError> {
            let text = tokenizer.plain_text(text)?;
            let encoded = tokenizer.encode(&text)?;
            must_give_back(&text, &encoded, tokenizer)?;
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
