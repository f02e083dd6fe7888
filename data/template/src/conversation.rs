//! A row's messages and tools, checked and normalized to one representation.
//!
//! The arguments of a tool call are always an object here. Files may also store the arguments as a
//! JSON string, which a template would quote a second time. Such a string is therefore parsed once,
//! strictly, and must contain an object.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::Serialize;
use serde_json::{Map, Value};
use tooltune_json as json;
use tooltune_json::{ReadError, kind_of};

use crate::content_parts::join_text_parts;
use crate::error::TemplateError;
use crate::message_fields;

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions that precede the conversation.
    System,
    /// Instructions from the application's developer; rendered as `system` by templates that do not
    /// support this role.
    Developer,
    /// The user, a person or a program.
    User,
    /// The model; the only role that is trained on.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// The role's name in chat templates.
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
        all.into_iter().find(|candidate| candidate.as_str() == role)
    }
}

/// One tool call of an assistant message.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The call's id, if the data has one; Mistral's templates need nine characters.
    pub id: Option<String>,
    /// Name of the tool.
    pub name: String,
    /// Arguments by name, in the order of the data.
    pub arguments: Map<String, Value>,
    /// Names of the arguments taken from earlier results. The user gave all other arguments.
    pub derived: BTreeSet<String>,
}

/// Origin of an argument value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ValueOrigin {
    /// The user.
    Fixed,
    /// The result of an earlier call.
    Derived,
}

/// A scalar argument value that occurs in the text of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentValue {
    /// Byte range in the content.
    pub range: Range<usize>,
    /// Origin of the value.
    pub origin: ValueOrigin,
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Author of the message.
    pub role: Role,
    /// The text; absent only if the message has tool calls.
    pub content: Option<String>,
    /// Argument values of calls that occur as text in `content`.
    pub content_values: Vec<ContentValue>,
    /// The calls of an assistant message.
    pub tool_calls: Vec<ToolCall>,
    /// Loss weight of this turn in the data: 0 excludes it, 1 is the default; `None` if the data
    /// sets no weight. Only assistant messages have a weight.
    pub weight: Option<f32>,
    /// Any other field, such as `name` or `tool_call_id`, passed to the template unchanged.
    pub extra: Map<String, Value>,
}

impl Message {
    /// Creates a message with only text.
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

    /// Whether the data excludes this turn from training.
    pub fn is_switched_off(&self) -> bool {
        self.weight == Some(0.0)
    }
}

/// Messages and the tools available to them.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    /// The messages in order.
    pub messages: Vec<Message>,
    /// Tools as passed to the template, usually `{"type": "function", "function": ...}`.
    pub tools: Option<Vec<Value>>,
    /// Documents for templates that support retrieval.
    pub documents: Option<Vec<Value>>,
    /// Index of the first message of the completion; everything before it is the prompt.
    pub completion_start: usize,
}

impl Conversation {
    /// Creates a conversation. Its completion is the last message if that is an assistant message,
    /// and empty otherwise.
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

    /// Removes the completion and everything after it.
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

/// Reads a JSON array of messages; errors call it `field`.
pub fn parse_messages(value: &Value, field: &str) -> Result<Vec<Message>, TemplateError> {
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

/// Reads one message; errors call it `field`.
pub fn parse_message(value: &Value, field: &str) -> Result<Message, TemplateError> {
    let fields = as_object(value, field)?;
    reject_old_field_names(
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
            expected: "absent, because only assistant messages call tools",
        }
        .into());
    }
    let content = match fields.get("content") {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(parts)) => Some(join_text_parts(parts, &format!("{field}.content"))?),
        None | Some(Value::Null) if !tool_calls.is_empty() => None,
        None => return Err(missing_field(&format!("{field}.content"), MESSAGE)),
        Some(other) => {
            let expected = "a string, or a list of parts of the type text";
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

fn parse_role(fields: &Map<String, Value>, field: &str) -> Result<Role, TemplateError> {
    let field = format!("{field}.role");
    match fields.get("role") {
        None => Err(missing_field(&field, MESSAGE)),
        Some(Value::String(role)) => Role::parse(role).ok_or_else(|| TemplateError::UnknownRole {
            field,
            role: role.clone(),
        }),
        Some(other) => Err(wrong_type(&field, other, "a string")),
    }
}

fn parse_tool_calls(value: Option<&Value>, field: &str) -> Result<Vec<ToolCall>, TemplateError> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(value) => as_array(value, field, "a list of tool calls")?
            .iter()
            .enumerate()
            .map(|(call_idx, call)| parse_tool_call(call, &format!("{field}[{call_idx}]")))
            .collect(),
    }
}

/// Rejects `function_call` and `functions`, which OpenAI used before `tool_calls` and `tools`. No
/// current template renders them, so the model would be trained on an empty answer instead of a
/// call.
///
/// Null and an empty list are accepted.
pub fn reject_old_field_names(
    value: Option<&Value>,
    parent: &str,
    name: &str,
    instead: &'static str,
) -> Result<(), TemplateError> {
    match value {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Array(items)) if items.is_empty() => Ok(()),
        Some(_) => Err(TemplateError::OldSpelling {
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
fn parse_tool_call(value: &Value, field: &str) -> Result<ToolCall, TemplateError> {
    const NEEDED: &str = "a tool call needs name and arguments";
    let outer = as_object(value, field)?;
    let id = match outer.get("id") {
        None | Some(Value::Null) => None,
        Some(Value::String(id)) => Some(id.clone()),
        Some(other) => return Err(wrong_type(&format!("{field}.id"), other, "a string")),
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
        None => return Err(missing_field(&format!("{field}.arguments"), NEEDED)),
    };
    let derived = parse_derived(outer.get("derived"), &arguments, &derived_field)?;
    Ok(ToolCall {
        id,
        name,
        arguments,
        derived,
    })
}

/// Accepts the names as an array, or as the keys of an object, which is the format of trajectories.
fn parse_derived(
    value: Option<&Value>,
    arguments: &Map<String, Value>,
    field: &str,
) -> Result<BTreeSet<String>, TemplateError> {
    const EXPECTED: &str = "a list of argument names, or an object with argument names as keys";
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
        Some(name) => Err(TemplateError::UnknownArgument {
            field: field.to_owned(),
            argument: (*name).clone(),
        }),
        None => Ok(names.into_iter().cloned().collect()),
    }
}

fn parse_arguments(value: &Value, field: &str) -> Result<Map<String, Value>, TemplateError> {
    let Value::String(text) = value else {
        return Ok(as_object(value, field)?.clone());
    };
    let invalid_arguments = |reason: String| TemplateError::ToolArguments {
        field: field.to_owned(),
        reason,
    };
    let value = json::parse_unique(text).map_err(|error| invalid_arguments(error.to_string()))?;
    if let Some(oversized) = json::oversized_integer(text, |_| true) {
        let field = format!("{field}.{}", oversized.field);
        return Err(ReadError::from(json::OversizedInteger { field, ..oversized }).into());
    }
    match value {
        Value::Object(arguments) => {
            let rendered = json::dumps(&Value::Object(arguments.clone()), json::Style::Python);
            match json::parse(&rendered) {
                Ok(Value::Object(same)) if same == arguments => Ok(arguments),
                _ => Err(invalid_arguments(
                    "it does not survive a round trip".to_owned(),
                )),
            }
        }
        other => Err(invalid_arguments(format!("it is {}", kind_of(&other)))),
    }
}

/// Reads a required string field.
pub fn text_field<'a>(
    fields: &'a Map<String, Value>,
    parent: &str,
    name: &str,
    needed: &'static str,
) -> Result<&'a str, TemplateError> {
    let field = if parent.is_empty() {
        name.to_owned()
    } else {
        format!("{parent}.{name}")
    };
    match fields.get(name) {
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(wrong_type(&field, other, "a string")),
        None => Err(missing_field(&field, needed)),
    }
}

/// Creates an error for a missing field; `needed` lists the fields that the format requires.
pub fn missing_field(field: &str, needed: &'static str) -> TemplateError {
    ReadError::missing(field, needed).into()
}

/// Creates an error for a field whose type is not `expected`.
pub fn wrong_type(field: &str, value: &Value, expected: &'static str) -> TemplateError {
    ReadError::wrong_type(field, value, expected).into()
}

/// Returns the value as an object; errors call it `field`.
pub fn as_object<'a>(
    value: &'a Value,
    field: &str,
) -> Result<&'a Map<String, Value>, TemplateError> {
    value
        .as_object()
        .ok_or_else(|| wrong_type(field, value, "an object"))
}

/// Returns the value as a list; errors call it `field`.
pub fn as_array<'a>(
    value: &'a Value,
    field: &str,
    expected: &'static str,
) -> Result<&'a [Value], TemplateError> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(wrong_type(field, other, expected)),
    }
}
