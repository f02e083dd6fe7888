//! The tools of a row: a list, or a JSON text of one, as TRL and LLaMA-Factory have it.

use serde_json::{Map, Value, json};

use super::error::FormatError;
use super::json_text;
use crate::text::conversation::{as_array, as_object, wrong_type};
use crate::text::error::DataError;

const LIST: &str = "a list of objects, or a JSON text of one";
const TOOL: &str = "an object, or a JSON text of one";

/// Whether a tool that is given as the inner object alone gets OpenAI's outer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::text) enum Wrapping {
    /// Templates see it as it is, as with `apply_chat_template` of transformers.
    AsGiven,
    /// They see `{"type": "function", "function": ...}`, as with LLaMA-Factory.
    Function,
}

/// Reads the field `tools`; `None` where there are none: null, an empty list or an empty text.
///
/// A text is what TRL calls for where the tools of rows differ, since columns of a data set have
/// one type (`trl` 1.16, `SFTTrainer`, which reads it with `json.loads`); a tool may be a text, too.
///
/// # Errors
///
/// - it is no list, or a tool is no object
/// - a text is not JSON, has a key twice or an integer beyond 64 bits
pub(in crate::text) fn tools(
    fields: &Map<String, Value>,
    wrapping: Wrapping,
) -> Result<Option<Vec<Value>>, DataError> {
    const FIELD: &str = "tools";
    let parsed;
    let value = match fields.get(FIELD) {
        None => return Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => return Ok(None),
        Some(Value::String(text)) => {
            parsed = json_text::value_of(text, FIELD, LIST)?;
            &parsed
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
        Value::String(text) => json_text::value_of(text, field, TOOL)?,
        other => other.clone(),
    };
    let Value::Object(given) = &mut tool else {
        return Err(wrong_type(field, &tool, TOOL));
    };
    let is_bare = !given.contains_key("function");
    let (function, field) = if is_bare {
        (given, field.to_owned())
    } else {
        match given.get_mut("function") {
            Some(Value::Object(function)) => (function, format!("{field}.function")),
            other => {
                let found = other.map_or(Value::Null, |other| other.clone());
                return Err(wrong_type(
                    &format!("{field}.function"),
                    &found,
                    "an object",
                ));
            }
        }
    };
    // As a text it would be quoted a second time, and no call could be checked by it.
    if let Some(parameters @ Value::String(_)) = function.get_mut("parameters") {
        let field = format!("{field}.parameters");
        let text = parameters.as_str().unwrap_or_default();
        let read = json_text::value_of(text, &field, TOOL)?;
        as_object(&read, &field)?;
        *parameters = read;
    }
    Ok(match wrapping {
        Wrapping::Function if is_bare => json!({"type": "function", "function": tool}),
        _ => tool,
    })
}

/// The calls that a field holds as a JSON text, or as it is: one call or a list of them.
///
/// # Errors
///
/// - a text is not JSON
/// - it is neither an object nor a list, or an empty list
pub(super) fn calls(value: &Value, field: &str) -> Result<Vec<Value>, DataError> {
    const CALLS: &str = "a call, {\"name\", \"arguments\"}, or a list of calls";
    let parsed;
    let value = match value {
        Value::String(text) => {
            parsed = json_text::value_of(text, field, CALLS)?;
            &parsed
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
            needed: "there is no call to learn: leave the row out, or write an answer in words as \
                     rows of the format messages have it",
        }
        .into())
    } else {
        Ok(calls)
    }
}
