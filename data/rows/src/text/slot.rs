//! SLOT rows: a text and a JSON schema in, a prompt and a JSON answer out.
//!
//! Whatever the prompt says, the schema's types decide: every gold value is checked against its
//! schema before anything is learned from it.

use serde_json::Value;

use super::conversation::{Conversation, Message, Role};
use super::error::DataError;
use super::slot_prompt::SlotPrompt;
use super::validators::Validators;
use crate::faults::excerpt;
use crate::json::{self, Style};

/// One row of the SLOT task.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotRow {
    /// The row as `file:line`.
    pub id: String,
    /// The text that holds the facts.
    pub input_text: String,
    /// The JSON schema that the answer must satisfy.
    pub json_schema: Value,
    /// The right answer.
    pub gold: Value,
}

impl SlotRow {
    /// The row as a prompt and its answer.
    ///
    /// # Errors
    ///
    /// As [`SlotPrompt::render`].
    pub fn conversation(&self, prompt: &SlotPrompt) -> Result<Conversation, DataError> {
        let asked = prompt.render(&self.input_text, &self.json_schema)?;
        let answer = slot_completion(&self.gold, &self.json_schema);
        Ok(Conversation::new(vec![
            Message::new(Role::User, asked),
            Message::new(Role::Assistant, answer),
        ]))
    }
}

/// The answer of a SLOT row: the gold as Python's `json.dumps(ensure_ascii=False)` writes it, keys
/// in the order of the schema at every level, keys that the schema does not name after them.
pub fn slot_completion(gold: &Value, json_schema: &Value) -> String {
    json::dumps(&json::in_schema_order(gold, json_schema), Style::Python)
}

/// Checks gold values, with the compiled schemas of earlier rows kept.
#[derive(Debug, Default)]
pub(super) struct GoldCheck {
    validators: Validators,
}

impl GoldCheck {
    /// # Errors
    ///
    /// - the schema cannot be used, as [`Validators::of`] says
    pub(super) fn check_schema(&mut self, json_schema: &Value) -> Result<(), DataError> {
        self.validators.of("json_schema", json_schema).map(drop)
    }

    /// # Errors
    ///
    /// - the schema cannot be used, as [`Validators::of`] says
    /// - the gold does not satisfy it; the first fault is reported
    pub(super) fn check(&mut self, gold: &Value, json_schema: &Value) -> Result<(), DataError> {
        let validator = self.validators.of("json_schema", json_schema)?;
        match validator.first_fault(gold) {
            None => Ok(()),
            Some(fault) => Err(DataError::GoldInvalid {
                pointer: fault.place.to_string(),
                reason: excerpt(&fault.reason),
            }),
        }
    }
}
