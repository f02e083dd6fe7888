//! Converts messages to template values, with or without marks around their pieces.

use minijinja::Value;
use tooltune_json as json;
use tooltune_json::Style;

use super::marks::{self, MarkTable, Piece};
use super::spans::SpanKind;
use crate::conversation::{Message, Role, ToolCall, ValueOrigin};
use crate::message_fields::REASONING;

/// Which pieces get marks, and the positions of the marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marking {
    pub(super) scope: Scope,
    pub(super) position: MarkPosition,
    pub(super) arguments: Arguments,
}

/// The messages whose content is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    EveryRole,
    /// Every message except tool results, which Mistral's templates parse as numbers if possible.
    NotTools,
    Assistant,
}

/// Positions of the marks of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MarkPosition {
    /// Around the whole content.
    Around,
    /// Inside the outer white space of the content, so that a template can still trim it.
    InsideWhiteSpace,
}

/// The parts of tool call arguments that are marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arguments {
    KeysAndValues,
    Nothing,
}

/// Converts messages for a template. Marks are numbered in message order, so a prefix of a
/// conversation has the same marks as the whole conversation.
#[derive(Debug)]
pub(super) struct MessageWriter {
    marking: Option<Marking>,
    table: MarkTable,
}

/// Messages as template values.
pub(super) struct MessageValues {
    pub(super) messages: Value,
    /// The strings that the generation tags print.
    pub(super) generation_marks: [&'static str; 2],
}

/// Combines converted messages with the strings that the generation tags print for this marking.
pub(super) fn message_values(marking: Option<Marking>, messages: Vec<Value>) -> MessageValues {
    MessageValues {
        messages: Value::from(messages),
        generation_marks: match marking {
            Some(_) => marks::GENERATION,
            None => ["", ""],
        },
    }
}

impl MessageWriter {
    pub(super) fn without_marks() -> Self {
        Self {
            marking: None,
            table: MarkTable::default(),
        }
    }

    pub(super) fn with_marks(marking: Marking) -> Self {
        Self {
            marking: Some(marking),
            table: MarkTable::default(),
        }
    }

    /// Returns the pieces by mark number.
    pub(super) fn into_table(self) -> MarkTable {
        self.table
    }

    /// Converts the messages, and adds the strings that the generation tags print.
    pub(super) fn messages(&mut self, messages: &[Message]) -> MessageValues {
        message_values(self.marking, self.values(messages))
    }

    /// Converts the messages one by one.
    pub(super) fn values(&mut self, messages: &[Message]) -> Vec<Value> {
        let messages = messages.iter().enumerate();
        messages
            .map(|(message_idx, message)| self.message(message_idx, message))
            .collect()
    }

    fn message(&mut self, message_idx: usize, message: &Message) -> Value {
        let mut fields = vec![("role", Value::from(message.role.as_str()))];
        let content = match &message.content {
            Some(text) => self.content(message_idx, message.role, text),
            None => Value::from(()),
        };
        fields.push(("content", content));
        fields.extend(
            message
                .extra
                .iter()
                .map(|(name, value)| (name.as_str(), from_json(value))),
        );
        let reasoning = REASONING
            .iter()
            .find_map(|name| message.extra.get(*name).filter(|value| !value.is_null()));
        if let Some(reasoning) = reasoning {
            fields.retain(|(name, _)| *name != REASONING[0]);
            fields.push((REASONING[0], from_json(reasoning)));
            for name in &REASONING[1..] {
                if message.extra.get(*name).is_none_or(|value| value.is_null()) {
                    fields.retain(|(other, _)| other != name);
                    fields.push((name, from_json(reasoning)));
                }
            }
        }
        if !message.tool_calls.is_empty() {
            let calls: Vec<Value> = message
                .tool_calls
                .iter()
                .map(|call| self.tool_call(message_idx, call))
                .collect();
            fields.push(("tool_calls", Value::from(calls)));
        }
        Value::from_pairs(fields)
    }

    fn content(&mut self, message: usize, role: Role, text: &str) -> Value {
        let Some(marking) = self.marking else {
            return Value::from(text);
        };
        let kind = match (role, marking.scope) {
            (Role::Assistant, _) => SpanKind::AssistantContent,
            (_, Scope::Assistant) | (Role::Tool, Scope::NotTools) => return Value::from(text),
            _ => SpanKind::PromptContent,
        };
        let inner = match marking.position {
            MarkPosition::Around => text,
            MarkPosition::InsideWhiteSpace => text.trim(),
        };
        let Some((before, after)) = text.split_once(inner).filter(|_| !inner.is_empty()) else {
            return Value::from(text);
        };
        match self.table.surround(Piece { kind, message }, inner) {
            Some(marked_text) => Value::from(format!("{before}{marked_text}{after}")),
            None => Value::from(text),
        }
    }

    fn tool_call(&mut self, message: usize, call: &ToolCall) -> Value {
        let name = match self.marking {
            None => Value::from(&call.name),
            Some(_) => self.mark_text(
                Piece {
                    kind: SpanKind::ToolCallName,
                    message,
                },
                &call.name,
            ),
        };
        let arguments = call
            .arguments
            .iter()
            .map(|(key, value)| {
                let origin = if call.derived.contains(key) {
                    ValueOrigin::Derived
                } else {
                    ValueOrigin::Fixed
                };
                let piece = Piece {
                    kind: SpanKind::from_origin(origin),
                    message,
                };
                (self.key(message, key), self.argument(piece, value))
            })
            .collect::<Vec<_>>();
        let function =
            Value::from_pairs([("name", name), ("arguments", Value::from_pairs(arguments))]);
        let mut fields = vec![("type", Value::from("function"))];
        fields.extend(call.id.as_ref().map(|id| ("id", Value::from(id))));
        fields.push(("function", function));
        Value::from_pairs(fields)
    }

    fn arguments(&self) -> Arguments {
        self.marking
            .map_or(Arguments::Nothing, |marking| marking.arguments)
    }

    fn key(&mut self, message: usize, key: &str) -> Value {
        match self.arguments() {
            Arguments::KeysAndValues => self.mark_text(
                Piece {
                    kind: SpanKind::ToolCallArgumentKey,
                    message,
                },
                key,
            ),
            Arguments::Nothing => Value::from(key),
        }
    }

    fn argument(&mut self, piece: Piece, value: &serde_json::Value) -> Value {
        match (value, self.arguments()) {
            (_, Arguments::Nothing) => from_json(value),
            (serde_json::Value::String(text), _) => self.mark_text(piece, text),
            (serde_json::Value::Array(items), _) => items
                .iter()
                .map(|item| self.argument(piece, item))
                .collect(),
            (serde_json::Value::Object(fields), _) => {
                let pairs: Vec<(Value, Value)> = fields
                    .iter()
                    .map(|(key, field)| (self.key(piece.message, key), self.argument(piece, field)))
                    .collect();
                Value::from_pairs(pairs)
            }
            (literal, Arguments::KeysAndValues) => self
                .table
                .surround_literal(piece, &json::dumps(literal, Style::Python))
                .map_or_else(|| from_json(literal), Value::from),
        }
    }

    fn mark_text(&mut self, piece: Piece, text: &str) -> Value {
        if text.is_empty() {
            return Value::from(text);
        }
        match self.table.surround(piece, text) {
            Some(marked_text) => Value::from(marked_text),
            None => Value::from(text),
        }
    }
}

/// Converts a JSON value to a template value.
pub(super) fn from_json(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(flag) => Value::from(*flag),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => Value::from(integer),
            (None, Some(integer)) => Value::from(integer),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text),
        serde_json::Value::Array(items) => items.iter().map(from_json).collect(),
        serde_json::Value::Object(fields) => Value::from_pairs(
            fields
                .iter()
                .map(|(key, field)| (key.as_str(), from_json(field))),
        ),
    }
}

/// Converts a list; `None` becomes `none`.
pub(super) fn from_list(items: Option<&[serde_json::Value]>) -> Value {
    items.map_or(Value::from(()), |items| {
        items.iter().map(from_json).collect()
    })
}
