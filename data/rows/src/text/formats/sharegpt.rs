//! Reads ShareGPT rows: `{"conversations": [{"from", "value"}, ...], "system"?, "tools"?}`.
//!
//! The known speakers are all speakers of LLaMA-Factory (`data/converter.py`,
//! `SharegptDatasetConverter`: human, gpt, observation, function_call, system), Axolotl's
//! `chat_template` (human, user, gpt, assistant, system, tool), ms-swift (tool_call,
//! tool_response) and ToolBench (user, assistant, system, function). Such rows may also contain messages with `role` and `content`, which are read as
//! in other formats.

use serde_json::{Map, Value, json};
use tooltune_template::conversation::{
    Conversation, Message, Role, as_array, as_object, missing_field, parse_message, text_field,
    wrong_type,
};

use super::FormattedRow;
use super::error::FormatError;
use super::tools::{Wrapping, read_calls, tools};
use crate::text::error::DataError;

const ITEM: &str = "an item of conversations needs from and value";

/// Reads a row.
pub(super) fn row(fields: &Map<String, Value>) -> Result<FormattedRow, DataError> {
    const NEEDED: &str = "a sharegpt row needs conversations, a list of {\"from\", \"value\"}";
    let names = ["conversations", "messages"].into_iter();
    let mut names = names.filter(|name| fields.get(*name).is_some_and(|list| !list.is_null()));
    let name = names
        .next()
        .ok_or_else(|| missing_field("conversations", NEEDED))?;
    if let Some(second) = names.next() {
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
    let mut call_paths = Vec::new();
    for (idx, item) in items.iter().enumerate() {
        let field = format!("{name}[{idx}]");
        let (message, calls) = message(item, &field)?;
        messages.push(message);
        call_paths.push(calls);
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
                call_paths.insert(0, "system".to_owned());
            }
        }
    }
    let conversation = Conversation {
        tools: tools(fields, Wrapping::Function)?,
        ..Conversation::new(messages)
    };
    Ok(FormattedRow {
        conversation,
        calls: call_paths,
        unknown_types: Vec::new(),
    })
}

/// The system prompt outside the messages; null and an empty string mean none.
pub(super) fn system_prompt(fields: &Map<String, Value>) -> Result<Option<&str>, DataError> {
    match fields.get("system") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
        Some(other) => Err(wrong_type("system", other, "a string").into()),
    }
}

/// Reads one message with the path of its calls.
fn message(item: &Value, field: &str) -> Result<(Message, String), DataError> {
    let fields = as_object(item, field)?;
    for (ours, theirs) in [("role", "from"), ("content", "value")] {
        if fields.contains_key(ours) && fields.contains_key(theirs) {
            return Err(FormatError::TwoSpellings {
                field: field.to_owned(),
                first: theirs,
                second: ours,
            }
            .into());
        }
    }
    if fields.contains_key("role") {
        let message = parse_message(item, field)?;
        return Ok((message, format!("{field}.tool_calls")));
    }
    let from = text_field(fields, field, "from", ITEM)?;
    let value = fields
        .get("value")
        .ok_or_else(|| missing_field(&format!("{field}.value"), ITEM))?;
    let role = match from {
        "human" | "user" => Role::User,
        "gpt" | "assistant" | "function_call" | "tool_call" => Role::Assistant,
        "system" => Role::System,
        "developer" => Role::Developer,
        "tool" | "function" | "observation" | "tool_response" => Role::Tool,
        other => {
            return Err(FormatError::UnknownSpeaker {
                field: format!("{field}.from"),
                from: other.to_owned(),
            }
            .into());
        }
    };
    // Other fields of the item have the same meaning as in a message, such as `weight`.
    let mut message = fields.clone();
    message.shift_remove("from");
    message.shift_remove("value");
    message.insert("role".to_owned(), json!(role.as_str()));
    let value_path = format!("{field}.value");
    if from.ends_with("_call") {
        message.insert(
            "tool_calls".to_owned(),
            json!(read_calls(value, &value_path)?),
        );
    } else {
        let text = value.is_string() || value.is_array();
        if !text {
            return Err(wrong_type(&value_path, value, "a string").into());
        }
        message.insert("content".to_owned(), value.clone());
    }
    let message = parse_message(&Value::Object(message), field)?;
    Ok((message, value_path))
}
