//! The fields of a message beside its text and calls: which of them say whether it is learned, and
//! which are a slip of the pen.
//!
//! The decision to question: a field that is one letter away from a known one is an error. A message
//! may have any other field, because templates read fields of their own; but `trian` would reach a
//! template that does not read it, and the turn would be learned against the word of the file.

use serde_json::{Map, Value};
use thiserror::Error;

use super::conversation::{Role, wrong_type};
use super::error::DataError;
use super::formats::joined_parts;

/// Fields that say whether a turn is learned, or how much.
///
/// # Source
///
/// Axolotl's documentation of `message_field_training` (`train`; `training` is its inner name),
/// OpenAI's format for fine-tuning (`weight`, 0 or 1), ms-swift's `messages` (`loss`).
const SWITCHES: [&str; 4] = ["train", "training", "loss", "weight"];

/// Axolotl's fields that name learned parts of a content by their offsets.
const PARTS: [&str; 2] = ["train_detail", "training_detail"];

/// The names under which data carries an assistant's reasoning, the standard one first.
///
/// # Source
///
/// transformers 5.23, `utils/chat_template_utils.py`, `_REASONING_FIELDS`.
pub(super) const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// What else a message of the field's formats has.
const OTHERS: [&str; 5] = ["role", "content", "tool_calls", "tool_call_id", "name"];

/// A field of a message that cannot be meant as it is written.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum MessageFieldError {
    /// A message that is never learned has a field that switches learning.
    #[error(
        "{field} stands in a {role} message, which is never learned; delete the field, or put it into \
         the assistant message that is meant"
    )]
    SwitchOnPrompt {
        /// Where the field is, such as `messages[2].train`.
        field: String,
        /// Who speaks the message.
        role: &'static str,
    },

    /// One field says that a turn is learned, and another that it is not.
    #[error(
        "{on} says that the turn is learned, and {off} in the same message that it is not; delete one \
         of them"
    )]
    SwitchesContradict {
        /// Where the field is that switches the turn on.
        on: String,
        /// Name of the field that switches it off.
        off: &'static str,
    },

    /// The weight of a message is negative or too large.
    #[error("{field} is {weight}; give a number of at least 0: 0 is not learned, 1 is as usual")]
    BadWeight {
        /// Where the weight is.
        field: String,
        /// The weight as given.
        weight: serde_json::Number,
    },

    /// Parts of a content are chosen by offsets.
    #[error(
        "{field} chooses parts of the content by offsets, which is not supported; set train, weight or \
         loss for the whole message, or name spans in mask.weights"
    )]
    PartsByOffset {
        /// Where the field is.
        field: String,
    },

    /// A part of a content has a switch of its own.
    #[error(
        "{field} switches a part of the content, which is not supported; set it for the whole message, \
         or name spans in mask.weights"
    )]
    SwitchInPart {
        /// Where the field is, such as `messages[2].content[0].train`.
        field: String,
    },

    /// Two fields give different texts as the reasoning of a message.
    #[error("{field} and {other} in the same message are different texts; keep one of them")]
    ReasoningTwice {
        /// Where the first field is.
        field: String,
        /// Name of the other.
        other: &'static str,
    },

    /// The result of a call says that another tool gave it.
    #[error(
        "{field} is {name:?}, and the call with its tool_call_id, {call}, calls {called:?}; give the \
         result the id of its own call, or the name of the tool that was called"
    )]
    ResultOfAnother {
        /// Where the name is.
        field: String,
        /// The name that the result has.
        name: String,
        /// Where the call is.
        call: String,
        /// The tool that it calls.
        called: String,
    },

    /// A message has a field whose name is nearly that of a known one.
    #[error("{field} is no known field; did you mean {near:?}?")]
    Misspelled {
        /// Where the field is.
        field: String,
        /// The known name.
        near: &'static str,
    },
}

/// The weight that a message gives its turn, from any of the fields for it; `None` where it has
/// none.
///
/// # Errors
///
/// - such a field has a value of another type, or stands in a message that is never learned
/// - two of them contradict each other
pub(super) fn turn_weight(
    fields: &Map<String, Value>,
    role: Role,
    field: &str,
) -> Result<Option<f32>, DataError> {
    let is_given = |name: &&str| fields.get(*name).is_some_and(|value| !value.is_null());
    let place = |name: &str| format!("{field}.{name}");
    if let Some(name) = PARTS.into_iter().find(is_given) {
        return Err(MessageFieldError::PartsByOffset { field: place(name) }.into());
    }
    let mut weight: Option<f32> = None;
    let (mut on, mut off) = (None, None);
    for name in SWITCHES.into_iter().filter(is_given) {
        let given = read_switch(name, &fields[name], &place(name))?;
        if role != Role::Assistant {
            return Err(MessageFieldError::SwitchOnPrompt {
                field: place(name),
                role: role.as_str(),
            }
            .into());
        }
        if given == 0.0 {
            off = Some(name)
        } else {
            on = Some(name)
        }
        // `true` says that the turn is learned, and a number beside it how much.
        weight = match (weight, name) {
            (Some(known), "train" | "training" | "loss") if given == 1.0 => Some(known),
            _ => Some(given),
        };
    }
    match (on, off) {
        (Some(on), Some(off)) => {
            Err(MessageFieldError::SwitchesContradict { on: place(on), off }.into())
        }
        _ => Ok(weight),
    }
}

/// Refuses fields that switch a part of a content on or off, as Axolotl's parts can have them: the
/// parts become one text, and its turn has one weight.
///
/// # Errors
///
/// - the part has such a field
pub(super) fn must_not_switch_part(
    part: &Map<String, Value>,
    field: &str,
) -> Result<(), DataError> {
    let is_given = |name: &&str| part.get(*name).is_some_and(|value| !value.is_null());
    match SWITCHES.into_iter().find(is_given) {
        Some(name) => Err(MessageFieldError::SwitchInPart {
            field: format!("{field}.{name}"),
        }
        .into()),
        None => Ok(()),
    }
}

fn read_switch(name: &str, value: &Value, field: &str) -> Result<f32, DataError> {
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
        (_, Value::Bool(is_learned)) => Ok(f32::from(u8::from(*is_learned))),
        (_, other) => Err(wrong_type(field, other, "true or false")),
    }
}

/// The fields that a message has beside its role, content, calls and weight, for the template.
///
/// Null is absence, as in transformers 5.23, whose `apply_chat_template` drops such keys.
///
/// # Errors
///
/// - a name is one letter away from a known one
/// - reasoning is neither a text nor a list of text parts
/// - two fields give different texts as reasoning
pub(super) fn for_template(
    fields: &Map<String, Value>,
    field: &str,
) -> Result<Map<String, Value>, DataError> {
    let is_ours = |name: &str| {
        SWITCHES.contains(&name)
            || PARTS.contains(&name)
            || ["role", "content", "tool_calls"].contains(&name)
    };
    let mut others = Map::new();
    let for_template = |(name, value): &(&String, &Value)| !is_ours(name) && !value.is_null();
    for (name, value) in fields.iter().filter(for_template) {
        if let Some(near) = nearly(name) {
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

/// The text of reasoning: templates test whether it is a string, and drop anything else.
fn reasoning_text(value: &Value, field: &str) -> Result<String, DataError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => joined_parts(parts, field),
        other => {
            let expected = "a text, or a list of parts of the type text";
            Err(wrong_type(field, other, expected))
        }
    }
}

/// The known field that a name is one letter away from, or differs from in case or hyphens alone.
fn nearly(name: &str) -> Option<&'static str> {
    let known = || {
        let all = SWITCHES.into_iter().chain(PARTS);
        all.chain(REASONING).chain(OTHERS)
    };
    // No known name is this long, and the distance takes time in the product of the lengths.
    if name.len() > 30 || known().any(|exact| exact == name) {
        return None;
    }
    let plain = name.to_lowercase().replace('-', "_");
    known().find(|near| strsim::damerau_levenshtein(&plain, near) <= 1)
}
