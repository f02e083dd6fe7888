//! Writes a trace as a row of messages with tools.

use serde_json::{Map, Value, json};
use tooltune_json::{Style, dumps};
use tooltune_template::conversation::Role;

use crate::trace::{Trace, Turn};

/// The row as one line. `metadata` has the source and the outcome; training ignores it.
pub(crate) fn line(trace: &Trace, weight: Option<f64>) -> String {
    let messages: Vec<Value> = trace
        .turns
        .iter()
        .map(|turn| message(turn, weight))
        .collect();
    let mut row = Map::new();
    row.insert("messages".to_owned(), messages.into());
    if !trace.tools.is_empty() {
        row.insert("tools".to_owned(), trace.tools.clone().into());
    }
    let mut metadata = json!({"source": trace.source.as_str()});
    if let Some(outcome) = trace.outcome {
        metadata["outcome"] = outcome.into();
    }
    row.insert("metadata".to_owned(), metadata);
    dumps(&Value::Object(row), Style::Python)
}

fn message(turn: &Turn, weight: Option<f64>) -> Value {
    let mut fields = Map::new();
    let mut insert = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    insert("role", turn.role.as_str().into());
    if let Some(reasoning) = &turn.reasoning {
        insert("reasoning_content", reasoning.clone().into());
    }
    if let Some(content) = &turn.content
        && (!content.is_empty() || turn.calls.is_empty())
    {
        insert("content", content.clone().into());
    }
    if !turn.calls.is_empty() {
        let call = |call: &crate::trace::Call| {
            let function = json!({"name": call.name, "arguments": call.arguments});
            json!({"id": call.id, "type": "function", "function": function})
        };
        insert("tool_calls", turn.calls.iter().map(call).collect());
    }
    if let Some(id) = &turn.call_id {
        insert("tool_call_id", id.clone().into());
    }
    if let Some(name) = &turn.name {
        insert("name", name.clone().into());
    }
    if let (Role::Assistant, Some(weight)) = (turn.role, weight) {
        insert("weight", weight.into());
    }
    Value::Object(fields)
}
