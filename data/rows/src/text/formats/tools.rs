//! Reads the tools of a row: a list, or a JSON string of one, as in TRL and LLaMA-Factory.

use serde_json::{Map, Value, json};
use tooltune_template::conversation::{as_array, as_object, wrong_type};

use super::error::FormatError;
use super::json_text;
use crate::text::error::DataError;

const LIST: &str = "a list of objects, or a JSON string of one";
const TOOL: &str = "an object, or a JSON string of one";

/// Whether a tool without OpenAI's outer object gets one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::text) enum Wrapping {
    /// Passed to templates unchanged, as in transformers' `apply_chat_template`.
    AsGiven,
    /// Wrapped as `{"type": "function", "function": ...}`, as in LLaMA-Factory.
    Function,
}

/// Reads the field `tools`; `None` if it is null, an empty list or an empty string.
///
/// TRL requires a JSON string if the tools of rows differ, because columns of a data set have one
/// type (`trl` 1.16, `SFTTrainer`, which parses it with `json.loads`). A single tool in the list
/// may also be a JSON string.
///
/// # Errors
///
/// - it is not a list, or a tool is not an object
/// - a string is not JSON, has a duplicate key or an integer beyond 64 bits
pub(in crate::text) fn tools(
    fields: &Map<String, Value>,
    wrapping: Wrapping,
) -> Result<Option<Vec<Value>>, DataError> {
    const FIELD: &str = "tools";
    let parsed_text;
    let value = match fields.get(FIELD) {
        None => return Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => return Ok(None),
        Some(Value::String(text)) => {
            parsed_text = json_text::parse_json_string(text, FIELD, LIST)?;
            &parsed_text
        }
        Some(value) => value,
    };
    if value.is_null() {
        return Ok(None);
    }
    let all = as_array(value, FIELD, LIST)?
        .iter()
        .enumerate()
        .map(|(idx, item)| tool(item, &format!("{FIELD}[{idx}]"), wrapping))
        .collect::<Result<Vec<Value>, DataError>>()?;
    Ok((!all.is_empty()).then_some(all))
}

fn tool(item: &Value, field: &str, wrapping: Wrapping) -> Result<Value, DataError> {
    let mut tool = match item {
        Value::String(text) => json_text::parse_json_string(text, field, TOOL)?,
        other => other.clone(),
    };
    let Value::Object(given) = &mut tool else {
        return Err(wrong_type(field, &tool, TOOL).into());
    };
    let is_bare = !given.contains_key("function");
    let (function, field) = if is_bare {
        (given, field.to_owned())
    } else {
        match given.get_mut("function") {
            Some(Value::Object(function)) => (function, format!("{field}.function")),
            other => {
                let value = other.map_or(Value::Null, |other| other.clone());
                return Err(wrong_type(&format!("{field}.function"), &value, "an object").into());
            }
        }
    };
    // If the parameters stayed a string, templates would quote them again, and calls could not be
    // checked against them.
    if let Some(parameters @ Value::String(_)) = function.get_mut("parameters") {
        let field = format!("{field}.parameters");
        let text = parameters.as_str().unwrap_or_default();
        let read = json_text::parse_json_string(text, &field, TOOL)?;
        as_object(&read, &field)?;
        *parameters = read;
    }
    Ok(match wrapping {
        Wrapping::Function if is_bare => json!({"type": "function", "function": tool}),
        _ => tool,
    })
}

/// Reads calls from a field that contains one call or a list of calls, as JSON or as a JSON string.
///
/// # Errors
///
/// - a string is not JSON
/// - it is neither an object nor a list, or is an empty list
pub(super) fn read_calls(value: &Value, field: &str) -> Result<Vec<Value>, DataError> {
    const CALLS: &str = "a call, {\"name\", \"arguments\"}, or a list of calls";
    let parsed_text;
    let value = match value {
        Value::String(text) => {
            parsed_text = json_text::parse_json_string(text, field, CALLS)?;
            &parsed_text
        }
        other => other,
    };
    let calls = match value {
        Value::Object(_) => vec![value.clone()],
        other => as_array(other, field, CALLS)?.to_vec(),
    };
    for (call_idx, call) in calls.iter().enumerate() {
        as_object(call, &format!("{field}[{call_idx}]"))?;
    }
    if calls.is_empty() {
        Err(FormatError::EmptyList {
            field: field.to_owned(),
            needed: "there is no call to train on: remove the row, or write a text answer in a \
                     row of the messages format",
        }
        .into())
    } else {
        Ok(calls)
    }
}
