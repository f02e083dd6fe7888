//! The message fields other than text and calls. This module decides which fields control training
//! and which are probably misspelled.
//!
//! A field name that is one letter away from a known name is an error. Other unknown fields are
//! allowed, because templates read custom fields. Without the error, `trian` would be passed to a
//! template that ignores it, and the turn would be trained on although the file excludes it.

use serde_json::{Map, Value};
use thiserror::Error;

use crate::content_parts::join_text_parts;
use crate::conversation::{Role, wrong_type};
use crate::error::TemplateError;

/// Fields that specify whether a turn is trained on, or with what weight.
///
/// # Source
///
/// Axolotl's documentation of `message_field_training` (`train`; `training` is its internal name),
/// OpenAI's format for fine-tuning (`weight`, 0 or 1), ms-swift's `messages` (`loss`).
const SWITCHES: [&str; 4] = ["train", "training", "loss", "weight"];

/// Axolotl's fields that select the trained parts of a content by offsets.
const PARTS: [&str; 2] = ["train_detail", "training_detail"];

/// Names of the field for an assistant's reasoning, starting with the standard name.
///
/// # Source
///
/// transformers 5.23, `utils/chat_template_utils.py`, `_REASONING_FIELDS`.
pub const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Other common message fields.
const OTHERS: [&str; 5] = ["role", "content", "tool_calls", "tool_call_id", "name"];

/// An invalid field of a message.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum MessageFieldError {
    /// A message that is never trained on has a training switch.
    #[error(
        "{field} is in a {role} message, which is never trained on; delete the field, or move it \
         to the intended assistant message"
    )]
    SwitchOnPrompt {
        /// Path of the field, such as `messages[2].train`.
        field: String,
        /// Role of the message.
        role: &'static str,
    },

    /// One field includes a turn in training, and another excludes it.
    #[error(
        "{on} includes the turn in training, but {off} in the same message excludes it; delete one \
         of them"
    )]
    SwitchesContradict {
        /// Path of the field that includes the turn.
        on: String,
        /// Name of the field that excludes it.
        off: &'static str,
    },

    /// The weight of a message is negative or too large.
    #[error(
        "{field} is {weight}; give a number of at least 0 (0 excludes the turn, 1 is the default)"
    )]
    BadWeight {
        /// Path of the weight.
        field: String,
        /// The weight as given.
        weight: serde_json::Number,
    },

    /// Parts of a content are selected by offsets.
    #[error(
        "{field} selects parts of the content by offsets, which is not supported; set train, \
         weight or loss for the whole message, or use span names in mask.weights"
    )]
    PartsByOffset {
        /// Path of the field.
        field: String,
    },

    /// A part of a content has its own training switch.
    #[error(
        "{field} switches training for a part of the content, which is not supported; set it for \
         the whole message, or use span names in mask.weights"
    )]
    SwitchInPart {
        /// Path of the field, such as `messages[2].content[0].train`.
        field: String,
    },

    /// A part of a message is not text.
    #[error(
        "{field} is a part of the type {kind:?}, but language models read only text; use parts of \
         the type \"text\", or remove the row"
    )]
    NoTextPart {
        /// Path of the part, such as `messages[0].content[1]`.
        field: String,
        /// The type of the part.
        kind: String,
    },

    /// Two reasoning fields of a message differ.
    #[error("{field} and {other} in the same message differ; delete one of them")]
    ReasoningTwice {
        /// Path of the first field.
        field: String,
        /// Name of the other.
        other: &'static str,
    },

    /// A tool result has a different tool name than its call.
    #[error(
        "{field} is {name:?}, but the tool_call_id of this message belongs to {call}, which calls \
         {called:?}; correct the tool_call_id or the name"
    )]
    ResultOfAnother {
        /// Path of the name.
        field: String,
        /// The tool name in the result.
        name: String,
        /// Path of the call.
        call: String,
        /// The tool that it calls.
        called: String,
    },

    /// The result of a call has an id that no earlier call has.
    #[error(
        "{field} is {id:?}, and no call before it has that id; the calls before it have {calls}. Give the \
         result the id of its call, or remove {field}"
    )]
    ResultOfNoCall {
        /// Path of the id.
        field: String,
        /// The id of the result.
        id: String,
        /// The ids of the calls.
        calls: String,
    },

    /// A field name is nearly equal to a known one.
    #[error("{field} is not a known field; did you mean {near:?}?")]
    Misspelled {
        /// Path of the field.
        field: String,
        /// The known name.
        near: &'static str,
    },
}

/// Returns the turn weight that the training fields of a message set, or `None` if it has no such
/// field.
///
/// # Errors
///
/// - such a field has the wrong type, or is in a message that is never trained on
/// - two of them contradict each other
pub fn turn_weight(
    fields: &Map<String, Value>,
    role: Role,
    field: &str,
) -> Result<Option<f32>, TemplateError> {
    let is_present = |name: &&str| fields.get(*name).is_some_and(|value| !value.is_null());
    let path = |name: &str| format!("{field}.{name}");
    if let Some(name) = PARTS.into_iter().find(is_present) {
        return Err(MessageFieldError::PartsByOffset { field: path(name) }.into());
    }
    let mut weight: Option<f32> = None;
    let (mut on, mut off) = (None, None);
    for name in SWITCHES.into_iter().filter(is_present) {
        let switch_weight = read_switch(name, &fields[name], &path(name))?;
        if role != Role::Assistant {
            return Err(MessageFieldError::SwitchOnPrompt {
                field: path(name),
                role: role.as_str(),
            }
            .into());
        }
        if switch_weight == 0.0 {
            off = Some(name)
        } else {
            on = Some(name)
        }
        // `true` includes the turn; a number in another field is the weight of the turn.
        weight = match (weight, name) {
            (Some(earlier), "train" | "training" | "loss") if switch_weight == 1.0 => Some(earlier),
            _ => Some(switch_weight),
        };
    }
    match (on, off) {
        (Some(on), Some(off)) => {
            Err(MessageFieldError::SwitchesContradict { on: path(on), off }.into())
        }
        _ => Ok(weight),
    }
}

/// Rejects fields that control training for a part of a content, as in Axolotl's format. The parts
/// are joined into one text, whose turn has one weight.
///
/// # Errors
///
/// - the part has such a field
pub fn refuse_part_switches(part: &Map<String, Value>, field: &str) -> Result<(), TemplateError> {
    let is_present = |name: &&str| part.get(*name).is_some_and(|value| !value.is_null());
    match SWITCHES.into_iter().find(is_present) {
        Some(name) => Err(MessageFieldError::SwitchInPart {
            field: format!("{field}.{name}"),
        }
        .into()),
        None => Ok(()),
    }
}

fn read_switch(name: &str, value: &Value, field: &str) -> Result<f32, TemplateError> {
    match (name, value) {
        ("weight", Value::Number(number)) => {
            let weight = number.as_f64().unwrap_or(f64::NAN) as f32;
            if weight.is_finite() && weight >= 0.0 {
                Ok(weight)
            } else {
                Err(MessageFieldError::BadWeight {
                    field: field.to_owned(),
                    weight: number.clone(),
                }
                .into())
            }
        }
        ("weight", other) => Err(wrong_type(field, other, "a number of at least 0")),
        (_, Value::Bool(is_trained)) => Ok(f32::from(u8::from(*is_trained))),
        (_, other) => Err(wrong_type(field, other, "true or false")),
    }
}

/// Returns the message fields other than role, content, calls and weight, for the template.
///
/// Null means absent, as in transformers 5.23, whose `apply_chat_template` drops such keys.
///
/// # Errors
///
/// - a name is one letter away from a known name
/// - reasoning is neither a string nor a list of text parts
/// - two reasoning fields differ
pub fn for_template(
    fields: &Map<String, Value>,
    field: &str,
) -> Result<Map<String, Value>, TemplateError> {
    let is_ours = |name: &str| {
        SWITCHES.contains(&name)
            || PARTS.contains(&name)
            || ["role", "content", "tool_calls"].contains(&name)
    };
    let mut others = Map::new();
    let for_template = |(name, value): &(&String, &Value)| !is_ours(name) && !value.is_null();
    for (name, value) in fields.iter().filter(for_template) {
        if let Some(near) = similar_field(name) {
            return Err(MessageFieldError::Misspelled {
                field: format!("{field}.{name}"),
                near,
            }
            .into());
        }
        let value = if REASONING.contains(&name.as_str()) {
            Value::from(reasoning_text(value, &format!("{field}.{name}"))?)
        } else {
            value.clone()
        };
        others.insert(name.clone(), value);
    }
    let mut reasoning = REASONING
        .into_iter()
        .filter_map(|name| Some((name, others.get(name)?)));
    if let Some((first, text)) = reasoning.next()
        && let Some((other, _)) = reasoning.find(|(_, other)| *other != text)
    {
        return Err(MessageFieldError::ReasoningTwice {
            field: format!("{field}.{first}"),
            other,
        }
        .into());
    }
    Ok(others)
}

/// Returns reasoning as a string, because templates test for a string and drop any other value.
fn reasoning_text(value: &Value, field: &str) -> Result<String, TemplateError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => join_text_parts(parts, field),
        other => {
            let expected = "a string, or a list of parts of the type text";
            Err(wrong_type(field, other, expected))
        }
    }
}

/// Returns the known field that differs from a name by one letter, or only by case or hyphens.
fn similar_field(name: &str) -> Option<&'static str> {
    let known_fields = || {
        let all = SWITCHES.into_iter().chain(PARTS);
        all.chain(REASONING).chain(OTHERS)
    };
    // Skip long names: no known name is this long, and the time to compute the distance is
    // proportional to the product of the lengths.
    if name.len() > 30 || known_fields().any(|exact| exact == name) {
        return None;
    }
    let normalized = name.to_lowercase().replace('-', "_");
    known_fields().find(|near| strsim::damerau_levenshtein(&normalized, near) <= 1)
}
