//! ShareGPT's rows: `{"conversations": [{"from", "value"}, ...], "system"?, "tools"?}`.
//!
//! The speakers are those of LLaMA-Factory (`data/converter.py`, `SharegptDatasetConverter`: human,
//! gpt, observation, function_call, system), of Axolotl's `chat_template` (human, user, gpt,
//! assistant, system, tool) and of ms-swift (tool_call, tool_response). Messages with `role` and
//! `content` stand in such rows, too, and are read as everywhere.

use serde_json::{Map, Value, json};

use super::FormattedRow;
use super::error::FormatError;
use super::tools::{Wrapping, calls, tools};
use crate::text::conversation::{
    Conversation, Message, Role, as_array, as_object, missing, parse_message, text_field,
    wrong_type,
};
use crate::text::error::DataError;

const ITEM: &str = "an item of conversations needs from and value";

/// Reads a row.
pub(super) fn row(fields: &Map<String, Value>) -> Result<FormattedRow, DataError> {
    const NEEDED: &str = "a sharegpt row needs conversations, a list of {\"from\", \"value\"}";
    let given = ["conversations", "messages"].into_iter();
    let mut given = given.filter(|name| fields.get(*name).is_some_and(|list| !list.is_null()));
    let name = given
        .next()
        .ok_or_else(|| missing("conversations", NEEDED))?;
    if let Some(second) = given.next() {
        return Err(FormatError::TwoSpellings {
            field: "the row".to_owned(),
            first: name,
            second,
        }
        .into());
    }
    let items = as_array(
        &fields[name],
        name,
        "a list of messages, {\"from\", \"value\"}",
    )?;
    if items.is_empty() {
        return Err(FormatError::EmptyList {
            field: name.to_owned(),
            needed: "a row needs at least one message",
        }
        .into());
    }
    let mut messages = Vec::new();
    let mut places = Vec::new();
    for (idx, item) in items.iter().enumerate() {
        let field = format!("{name}[{idx}]");
        let (message, calls) = message(item, &field)?;
        messages.push(message);
        places.push(calls);
    }
    if let Some(system) = system_prompt(fields)? {
        match messages.first() {
            Some(first) if first.role == Role::System => {
                if first.content.as_deref() != Some(system) {
                    return Err(FormatError::TwoSystemPrompts {
                        first: "system",
                        second: format!("{name}[0]"),
                    }
                    .into());
                }
            }
            _ => {
                messages.insert(0, Message::new(Role::System, system));
                places.insert(0, "system".to_owned());
            }
        }
    }
    let conversation = Conversation {
        tools: tools(fields, Wrapping::Function)?,
        ..Conversation::new(messages)
    };
    Ok(FormattedRow {
        conversation,
        calls: places,
        unknown_types: Vec::new(),
    })
}

/// The system prompt that stands beside the messages; null and an empty text say that there is none.
pub(super) fn system_prompt(fields: &Map<String, Value>) -> Result<Option<&str>, DataError> {
    match fields.get("system") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
        Some(other) => Err(wrong_type("system", other, "a text")),
    }
}

/// One message, and where its calls stand.
fn message(item: &Value, field: &str) -> Result<(Message, String), DataError> {
    let given = as_object(item, field)?;
    for (ours, theirs) in [("role", "from"), ("content", "value")] {
        if given.contains_key(ours) && given.contains_key(theirs) {
            return Err(FormatError::TwoSpellings {
                field: field.to_owned(),
                first: theirs,
                second: ours,
            }
            .into());
        }
    }
    if given.contains_key("role") {
        let message = parse_message(item, field)?;
        return Ok((message, format!("{field}.tool_calls")));
    }
    let from = text_field(given, field, "from", ITEM)?;
    let value = given
        .get("value")
        .ok_or_else(|| missing(&format!("{field}.value"), ITEM))?;
    let role = match from {
        "human" | "user" => Role::User,
        "gpt" | "assistant" | "function_call" | "tool_call" => Role::Assistant,
        "system" => Role::System,
        "developer" => Role::Developer,
        "tool" | "observation" | "tool_response" => Role::Tool,
        other => {
            return Err(FormatError::UnknownSpeaker {
                field: format!("{field}.from"),
                from: other.to_owned(),
            }
            .into());
        }
    };
    // All other fields of the item say what they say in a message, such as `weight`.
    let mut message = given.clone();
    message.shift_remove("from");
    message.shift_remove("value");
    message.insert("role".to_owned(), json!(role.as_str()));
    let place = format!("{field}.value");
    if from.ends_with("_call") {
        message.insert("tool_calls".to_owned(), json!(calls(value, &place)?));
    } else {
        let text = value.is_string() || value.is_array();
        if !text {
            return Err(wrong_type(&place, value, "a text"));
        }
        message.insert("content".to_owned(), value.clone());
    }
    let message = parse_message(&Value::Object(message), field)?;
    Ok((message, place))
}
