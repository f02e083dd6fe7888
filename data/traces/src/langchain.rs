//! Message lists of LangChain and LangGraph: a list of messages, or an object with `messages`, such
//! as the state of a graph, also within `values`.
//!
//! A message is as `message.model_dump()` writes it, `{"type": "human", "content": …}`, as
//! `messages_to_dict` does, `{"type": "human", "data": {…}}`, or as `dumpd` does,
//! `{"lc": 1, "type": "constructor", "id": […, "HumanMessage"], "kwargs": {…}}`.
//!
//! # Source
//!
//! `langchain-ai/langchain`, `libs/core/langchain_core/messages` and `load/dump.py`, read on
//! 2026-11-30.

use serde_json::{Map, Value};
use tooltune_template::conversation::Role;

use crate::chat;
use crate::repair::BAD_ARGUMENTS;
use crate::source::TraceSource;
use crate::trace::{Problem, Trace, Turn};

/// Whether an entry has this layout.
pub(crate) fn is_known(fields: &Map<String, Value>) -> bool {
    let values = fields
        .get("values")
        .and_then(|values| values.get("messages"));
    let list = fields.get("messages").or(values);
    let first = list.and_then(|list| list.get(0)?.as_object());
    first.is_some_and(is_message) || is_message(fields)
}

fn is_message(message: &Map<String, Value>) -> bool {
    let has = |name: &str| message.contains_key(name);
    let kind = message.get("type").and_then(Value::as_str);
    match kind.unwrap_or_default() {
        "constructor" => constructor_role(message.get("id")).is_some(),
        kind => message_role(kind).is_some() && !has("role") && (has("content") || has("data")),
    }
}

/// The role of `type`, also of the chunks that streaming yields.
fn message_role(kind: &str) -> Option<Role> {
    match kind {
        "human" | "HumanMessageChunk" => Some(Role::User),
        "ai" | "AIMessageChunk" => Some(Role::Assistant),
        "system" | "SystemMessageChunk" => Some(Role::System),
        "tool" | "function" | "ToolMessageChunk" => Some(Role::Tool),
        _ => None,
    }
}

/// The role of a class, the last item of the `id`.
fn constructor_role(id: Option<&Value>) -> Option<Role> {
    let class = id?.as_array()?.last()?.as_str()?;
    match class.strip_suffix("Chunk").unwrap_or(class) {
        "HumanMessage" => Some(Role::User),
        "AIMessage" => Some(Role::Assistant),
        "SystemMessage" => Some(Role::System),
        "ToolMessage" | "FunctionMessage" => Some(Role::Tool),
        _ => None,
    }
}

/// The conversation of an entry that has all messages.
pub(crate) fn conversation(entry: &Value, location: &str) -> Option<Trace> {
    let list = match entry {
        Value::Array(_) => entry,
        _ => entry
            .get("messages")
            .or_else(|| entry.get("values")?.get("messages"))?,
    };
    let mut trace = Trace::new(TraceSource::Langchain, location);
    for message in list.as_array()? {
        trace.push(turns(message));
    }
    Some(trace)
}

/// The turns of a message.
pub(crate) fn turns(message: &Value) -> Result<Vec<Turn>, Problem> {
    let kind = message
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let role = match kind {
        "constructor" => constructor_role(message.get("id")),
        // A `RemoveMessage` has no place in the list that a graph stores.
        kind => message_role(kind),
    };
    let fields = ["kwargs", "data"]
        .iter()
        .find_map(|name| message.get(*name));
    let fields = fields
        .unwrap_or(message)
        .as_object()
        .ok_or(chat::NO_MESSAGE)?;
    let Some(role) = role else {
        // OpenAI's messages may be in the same list.
        return chat::turns(message);
    };
    let invalid = fields.get("invalid_tool_calls").and_then(Value::as_array);
    if invalid.is_some_and(|calls| !calls.is_empty()) {
        return Err(BAD_ARGUMENTS);
    }
    let mut fields = fields.clone();
    if role == Role::Tool {
        // `id` is the id of the message.
        fields.remove("id");
    }
    chat::turns_of(&fields, role)
}
