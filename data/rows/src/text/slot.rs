//! SLOT rows: an input text and a JSON Schema, converted to a prompt and a JSON answer.
//!
//! Every reference answer is checked against its schema before training.

use serde_json::Value;
use tooltune_json as json;
use tooltune_json::Style;
use tooltune_json::faults::excerpt;
use tooltune_json::json_schema::FormatRule;
use tooltune_template::conversation::{Conversation, Message, Role};

use super::error::DataError;
use super::slot_prompt::SlotPrompt;
use super::validators::Validators;

/// One row of the SLOT task.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotRow {
    /// The row as `file:line`.
    pub id: String,
    /// The input text with the facts.
    pub input_text: String,
    /// The JSON Schema that the answer must satisfy.
    pub json_schema: Value,
    /// The reference answer.
    pub gold: Value,
}

impl SlotRow {
    /// Converts the row to a prompt and its answer.
    ///
    /// # Errors
    ///
    /// As [`SlotPrompt::render`].
    pub fn conversation(&self, prompt: &SlotPrompt) -> Result<Conversation, DataError> {
        let prompt_text = prompt.render(&self.input_text, &self.json_schema)?;
        let answer = slot_completion(&self.gold, &self.json_schema);
        Ok(Conversation::new(vec![
            Message::new(Role::User, prompt_text),
            Message::new(Role::Assistant, answer),
        ]))
    }
}

/// The answer of a SLOT row: the reference as written by Python's `json.dumps(ensure_ascii=False)`,
/// with keys in schema order at every level and keys that the schema does not declare at the end.
pub fn slot_completion(gold: &Value, json_schema: &Value) -> String {
    json::dumps(&json::order_by_schema(gold, json_schema), Style::Python)
}

/// Checks reference answers; caches the compiled schemas of earlier rows.
#[derive(Debug)]
pub(super) struct GoldCheck {
    validators: Validators,
}

impl GoldCheck {
    pub(super) fn new(formats: FormatRule) -> Self {
        Self {
            validators: Validators::new(formats),
        }
    }

    /// Checks that a schema can be used.
    ///
    /// # Errors
    ///
    /// - the schema cannot be used, as in [`Validators::get_or_compile`]
    pub(super) fn check_schema(&mut self, json_schema: &Value) -> Result<(), DataError> {
        self.validators
            .get_or_compile("json_schema", json_schema)
            .map(drop)
    }

    /// Checks a reference answer against its schema.
    ///
    /// # Errors
    ///
    /// - the schema cannot be used, as in [`Validators::get_or_compile`]
    /// - the reference answer violates it; the first violation is reported
    pub(super) fn check(&mut self, gold: &Value, json_schema: &Value) -> Result<(), DataError> {
        let validator = self.validators.get_or_compile("json_schema", json_schema)?;
        match validator.first_fault(gold) {
            None => Ok(()),
            Some(fault) => Err(DataError::GoldInvalid {
                pointer: fault.place.to_string(),
                reason: excerpt(&fault.reason) + fault.remedy(),
            }),
        }
    }
}
