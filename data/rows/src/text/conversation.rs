//! A row's messages and tools, checked and in one form whatever spelling the file used.
//!
//! The decision to question: the arguments of a tool call are always an object here. Files also
//! carry them as a JSON text, and a template would then quote that text a second time; the text is
//! read once, strictly, and only if it is an object.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::Serialize;
use serde_json::{Map, Value};

use super::error::DataError;
use super::formats::joined_parts;
use super::message_fields;
use crate::json;
use crate::read_error::ReadError;
use crate::tools::kind_of;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions above the conversation.
    System,
    /// The same of whoever built the program; a template that does not know it gets `system`.
    Developer,
    /// The person, or the program that asks.
    User,
    /// The model; the only role that is learned.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// The role as chat templates compare it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }

    fn parse(role: &str) -> Option<Self> {
        let all = [
            Self::System,
            Self::Developer,
            Self::User,
            Self::Assistant,
            Self::Tool,
        ];
        all.into_iter().find(|known| known.as_str() == role)
    }
}

/// One call that an assistant message makes.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The call's id where the data has one; Mistral's templates need nine characters.
    pub id: Option<String>,
    /// Name of the tool.
    pub name: String,
    /// Arguments by name, in the order of the data.
    pub arguments: Map<String, Value>,
    /// Names of the arguments that came from earlier results; all others were given by the user.
    pub derived: BTreeSet<String>,
}

/// Where the value of an argument came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ValueOrigin {
    /// From the user.
    Fixed,
    /// From the result of an earlier call.
    Derived,
}

/// A scalar value of a call that is written into the text of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentValue {
    /// Its bytes in the content.
    pub range: Range<usize>,
    /// Where it came from.
    pub origin: ValueOrigin,
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The text; absent only where the message has tool calls.
    pub content: Option<String>,
    /// Argument values of calls that are written into `content` as text.
    pub content_values: Vec<ContentValue>,
    /// The calls of an assistant message.
    pub tool_calls: Vec<ToolCall>,
    /// What the data says of this turn's share in the loss: 0 is not learned, 1 is as usual; `None`
    /// where it says nothing. Only an assistant message has one.
    pub weight: Option<f32>,
    /// Any other field, such as `name` or `tool_call_id`, handed to the template as it is.
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message of nothing but text.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: Some(content.into()),
            content_values: Vec::new(),
            tool_calls: Vec::new(),
            weight: None,
            extra: Map::new(),
        }
    }

    /// Whether the data switches this turn off.
    pub fn is_switched_off(&self) -> bool {
        self.weight == Some(0.0)
    }
}

/// Messages with the tools that they may use.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    /// The messages in order.
    pub messages: Vec<Message>,
    /// Tools as the template is to see them, usually `{"type": "function", "function": ...}`.
    pub tools: Option<Vec<Value>>,
    /// Documents for templates that know retrieval.
    pub documents: Option<Vec<Value>>,
    /// Index of the first message of the completion; everything before it is the prompt.
    pub completion_start: usize,
}

impl Conversation {
    /// A conversation whose completion is its last message if the assistant speaks it, and empty
    /// otherwise.
    pub fn new(messages: Vec<Message>) -> Self {
        let ends_with_answer = messages
            .last()
            .is_some_and(|message| message.role == Role::Assistant);
        Self {
            completion_start: messages.len() - usize::from(ends_with_answer),
            messages,
            tools: None,
            documents: None,
        }
    }

    /// The messages before the completion and nothing after them.
    #[must_use]
    pub fn without_answer(mut self) -> Self {
        self.messages.truncate(self.completion_start);
        self
    }

    /// The messages before the completion.
    pub fn prompt(&self) -> &[Message] {
        &self.messages[..self.completion_start.min(self.messages.len())]
    }
}

/// Reads a JSON array of messages; `field` is its name in errors.
pub(super) fn parse_messages(value: &Value, field: &str) -> Result<Vec<Message>, DataError> {
    let items = as_array(value, field, "a list of messages")?;
    if items.is_empty() {
        return Err(ReadError::WrongType {
            field: field.to_owned(),
            found: "an empty array",
            expected: "a list of at least one message",
        }
        .into());
    }
    items
        .iter()
        .enumerate()
        .map(|(message_idx, item)| parse_message(item, &format!("{field}[{message_idx}]")))
        .collect()
}

pub(super) fn parse_message(value: &Value, field: &str) -> Result<Message, DataError> {
    let fields = as_object(value, field)?;
    refuse_old_spelling(
        fields.get("function_call"),
        field,
        "function_call",
        "tool_calls",
    )?;
    let role = parse_role(fields, field)?;
    let tool_calls = parse_tool_calls(fields.get("tool_calls"), &format!("{field}.tool_calls"))?;
    if !tool_calls.is_empty() && role != Role::Assistant {
        return Err(ReadError::WrongType {
            field: format!("{field}.tool_calls"),
            found: "present",
            expected: "absent: only an assistant message calls tools",
        }
        .into());
    }
    let content = match fields.get("content") {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(parts)) => Some(joined_parts(parts, &format!("{field}.content"))?),
        None | Some(Value::Null) if !tool_calls.is_empty() => None,
        None => return Err(missing(&format!("{field}.content"), MESSAGE)),
        Some(other) => {
            let expected = "a text, or a list of parts of the type text";
            return Err(wrong_type(&format!("{field}.content"), other, expected));
        }
    };
    Ok(Message {
        role,
        content,
        content_values: Vec::new(),
        tool_calls,
        weight: message_fields::turn_weight(fields, role, field)?,
        extra: message_fields::for_template(fields, field)?,
    })
}

const MESSAGE: &str = "a message needs role, and content or tool_calls";

fn parse_role(fields: &Map<String, Value>, field: &str) -> Result<Role, DataError> {
    let field = format!("{field}.role");
    match fields.get("role") {
        None => Err(missing(&field, MESSAGE)),
        Some(Value::String(role)) => Role::parse(role).ok_or_else(|| DataError::UnknownRole {
            field,
            role: role.clone(),
        }),
        Some(other) => Err(wrong_type(&field, other, "a text")),
    }
}

fn parse_tool_calls(value: Option<&Value>, field: &str) -> Result<Vec<ToolCall>, DataError> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(value) => as_array(value, field, "a list of tool calls")?
            .iter()
            .enumerate()
            .map(|(call_idx, call)| parse_tool_call(call, &format!("{field}[{call_idx}]")))
            .collect(),
    }
}

/// Refuses what OpenAI's files called `function_call` and `functions` before they had tools: no
/// template of today renders it, so that a call would be learned as an empty answer.
///
/// Null and an empty list say that there is none, and pass.
pub(super) fn refuse_old_spelling(
    value: Option<&Value>,
    parent: &str,
    name: &str,
    instead: &'static str,
) -> Result<(), DataError> {
    match value {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Array(items)) if items.is_empty() => Ok(()),
        Some(_) => Err(DataError::OldSpelling {
            field: if parent.is_empty() {
                name.to_owned()
            } else {
                format!("{parent}.{name}")
            },
            instead,
        }),
    }
}

/// Accepts `{"function": {"name", "arguments"}}` and `{"name", "arguments"}`.
fn parse_tool_call(value: &Value, field: &str) -> Result<ToolCall, DataError> {
    const NEEDED: &str = "a tool call needs name and arguments";
    let outer = as_object(value, field)?;
    let id = match outer.get("id") {
        None | Some(Value::Null) => None,
        Some(Value::String(id)) => Some(id.clone()),
        Some(other) => return Err(wrong_type(&format!("{field}.id"), other, "a text")),
    };
    let derived_field = format!("{field}.derived");
    let (fields, field) = match outer.get("function") {
        Some(function) => {
            let field = format!("{field}.function");
            (as_object(function, &field)?, field)
        }
        None => (outer, field.to_owned()),
    };
    let name = text_field(fields, &field, "name", NEEDED)?.to_owned();
    let arguments = match fields.get("arguments") {
        Some(arguments) => parse_arguments(arguments, &format!("{field}.arguments"))?,
        None => return Err(missing(&format!("{field}.arguments"), NEEDED)),
    };
    let derived = parse_derived(outer.get("derived"), &arguments, &derived_field)?;
    Ok(ToolCall {
        id,
        name,
        arguments,
        derived,
    })
}

/// Accepts the names as an array, and as the keys of an object, as trajectories have it.
fn parse_derived(
    value: Option<&Value>,
    arguments: &Map<String, Value>,
    field: &str,
) -> Result<BTreeSet<String>, DataError> {
    const EXPECTED: &str = "a list of argument names, or an object with such keys";
    let names: Vec<&String> = match value {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Object(origins)) => origins.keys().collect(),
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| match item {
                Value::String(name) => Ok(name),
                other => Err(wrong_type(field, other, EXPECTED)),
            })
            .collect::<Result<_, _>>()?,
        Some(other) => return Err(wrong_type(field, other, EXPECTED)),
    };
    match names.iter().find(|name| !arguments.contains_key(**name)) {
        Some(name) => Err(DataError::UnknownArgument {
            field: field.to_owned(),
            argument: (*name).clone(),
        }),
        None => Ok(names.into_iter().cloned().collect()),
    }
}

fn parse_arguments(value: &Value, field: &str) -> Result<Map<String, Value>, DataError> {
    let Value::String(text) = value else {
        return Ok(as_object(value, field)?.clone());
    };
    let refused = |reason: String| DataError::ToolArguments {
        field: field.to_owned(),
        reason,
    };
    let value = json::parse_unique(text).map_err(|error| refused(error.to_string()))?;
    if let Some(oversized) = json::oversized_integer(text, |_| true) {
        let field = format!("{field}.{}", oversized.field);
        return Err(ReadError::from(json::OversizedInteger { field, ..oversized }).into());
    }
    match value {
        Value::Object(arguments) => {
            let again = json::dumps(&Value::Object(arguments.clone()), json::Style::Python);
            match json::parse(&again) {
                Ok(Value::Object(same)) if same == arguments => Ok(arguments),
                _ => Err(refused("it does not survive a round trip".to_owned())),
            }
        }
        other => Err(refused(format!("it is {}", kind_of(&other)))),
    }
}

pub(super) fn text_field<'a>(
    fields: &'a Map<String, Value>,
    parent: &str,
    name: &str,
    needed: &'static str,
) -> Result<&'a str, DataError> {
    let field = if parent.is_empty() {
        name.to_owned()
    } else {
        format!("{parent}.{name}")
    };
    match fields.get(name) {
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(wrong_type(&field, other, "a text")),
        None => Err(missing(&field, needed)),
    }
}

pub(super) fn missing(field: &str, needed: &'static str) -> DataError {
    ReadError::missing(field, needed).into()
}

pub(super) fn wrong_type(field: &str, found: &Value, expected: &'static str) -> DataError {
    ReadError::wrong_type(field, found, expected).into()
}

pub(super) fn as_object<'a>(
    value: &'a Value,
    field: &str,
) -> Result<&'a Map<String, Value>, DataError> {
    value
        .as_object()
        .ok_or_else(|| wrong_type(field, value, "an object"))
}

pub(super) fn as_array<'a>(
    value: &'a Value,
    field: &str,
    expected: &'static str,
) -> Result<&'a [Value], DataError> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(wrong_type(field, other, expected)),
    }
}
