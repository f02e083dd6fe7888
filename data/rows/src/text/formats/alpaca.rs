//! Reads Alpaca rows: `{"instruction", "input"?, "output", "history"?, "system"?, "tools"?}`.
//!
//! Semantics follow LLaMA-Factory (`data/converter.py`, `AlpacaDatasetConverter`): the question is
//! instruction and input joined by a line break, preceded by the pairs of `history`. The model's
//! chat template is used, not Stanford's prompt.

use serde_json::{Map, Value};
use tooltune_template::conversation::{
    Conversation, Message, Role, as_array, text_field, wrong_type,
};

use super::FormattedRow;
use super::sharegpt::system_prompt;
use super::tools::{Wrapping, tools};
use crate::text::error::DataError;

/// Reads a row.
pub(super) fn row(fields: &Map<String, Value>) -> Result<FormattedRow, DataError> {
    const NEEDED: &str = "an alpaca row needs instruction and output";
    const PAIR: &str = "a pair of texts, a question and its answer";
    let instruction = text_field(fields, "", "instruction", NEEDED)?;
    let input = match fields.get("input") {
        None | Some(Value::Null) => "",
        Some(Value::String(text)) => text,
        Some(other) => return Err(wrong_type("input", other, "a string").into()),
    };
    let output = text_field(fields, "", "output", NEEDED)?;
    let mut messages = Vec::new();
    if let Some(system) = system_prompt(fields)? {
        messages.push(Message::new(Role::System, system));
    }
    let history = match fields.get("history") {
        None | Some(Value::Null) => &[][..],
        Some(value) => as_array(value, "history", "a list of pairs of texts")?,
    };
    for (idx, pair) in history.iter().enumerate() {
        let field = format!("history[{idx}]");
        let texts = as_array(pair, &field, PAIR)?;
        let [Value::String(question), Value::String(answer)] = texts else {
            return Err(wrong_type(&field, pair, PAIR).into());
        };
        messages.push(Message::new(Role::User, question));
        messages.push(Message::new(Role::Assistant, answer));
    }
    let question: Vec<&str> = [instruction, input]
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect();
    messages.push(Message::new(Role::User, question.join("\n")));
    messages.push(Message::new(Role::Assistant, output));
    let calls = vec![String::new(); messages.len()];
    let conversation = Conversation {
        tools: tools(fields, Wrapping::Function)?,
        ..Conversation::new(messages)
    };
    Ok(FormattedRow {
        conversation,
        calls,
        unknown_types: Vec::new(),
    })
}
