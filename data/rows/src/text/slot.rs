//! SLOT rows: a text and a JSON schema in, the prompt of the paper's Figure 6 and a JSON answer out.
//!
//! The prompt is the paper's, word for word, though its sentence about strings contradicts typed
//! schemas: models trained elsewhere on this task saw it. The schema's types decide, and every
//! gold value is checked against its schema before anything is learned from it.

use serde_json::Value;

use super::conversation::{Conversation, Message, Role};
use super::error::{DataError, excerpt};
use super::validators::Validators;
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
    pub fn conversation(&self) -> Conversation {
        Conversation::new(vec![
            Message::new(Role::User, slot_prompt(&self.input_text, &self.json_schema)),
            Message::new(
                Role::Assistant,
                slot_completion(&self.gold, &self.json_schema),
            ),
        ])
    }
}

/// The user turn of a SLOT row; the schema is written without blanks, keys in their own order.
///
/// # Source
///
/// SLOT, appendix F.1, Figure 6.
pub fn slot_prompt(input_text: &str, json_schema: &Value) -> String {
    let schema = json::dumps(json_schema, Style::Compact);
    format!(
        "Convert the following text into JSON format according to the specified schema. Ensure \
         that both keys and values are strings, even for numerical values.\n\n\
         Text: {input_text}\n\n\
         Provide your response in the following JSON format: {schema}\n\n\
         Please output ONLY the JSON structure and extract the attributes only present in the \
         schema.\n\n\
         Output:"
    )
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
