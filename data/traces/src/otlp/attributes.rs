//! Values of OTLP/JSON, and attributes whose names are paths.
//!
//! # Source
//!
//! - `opentelemetry-proto`, `common.proto` (`AnyValue`) and the JSON mapping of the OTLP
//!   specification
//! - OpenInference, "Semantic conventions", `llm.input_messages.N.message.…`
//! - OpenLLMetry, `gen_ai.prompt.N.…` and `llm.request.functions.N.…`
//!
//! All read on 2026-11-30.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Maximum parts of an attribute name that is a path.
const MAX_PARTS: usize = 16;

/// Converts a list of `{"key", "value"}`; a later key replaces an equal one.
pub(super) fn decode(attributes: Option<&Value>) -> Map<String, Value> {
    let items = attributes.and_then(Value::as_array).into_iter().flatten();
    let pair = |item: &Value| {
        let key = item.get("key")?.as_str()?.to_owned();
        Some((key, decode_value(item.get("value")?)))
    };
    items.filter_map(pair).collect()
}

/// Converts an `AnyValue`.
pub(super) fn decode_value(value: &Value) -> Value {
    let Some((kind, value)) = value.as_object().and_then(|fields| fields.iter().next()) else {
        return Value::Null;
    };
    match kind.as_str() {
        // 64-bit integers are strings in protobuf's JSON.
        "intValue" => match value {
            Value::String(text) => text.parse::<i64>().map_or(Value::Null, Value::from),
            number => number.clone(),
        },
        "arrayValue" => {
            let items = value.get("values").and_then(Value::as_array);
            items.into_iter().flatten().map(decode_value).collect()
        }
        "kvlistValue" => Value::Object(decode(value.get("values"))),
        _ => value.clone(),
    }
}

/// Parses a string that contains an object or array of JSON; other values are returned unchanged.
pub(super) fn structured(value: &Value) -> Value {
    match value {
        Value::String(text) if text.trim_start().starts_with(['[', '{']) => {
            tooltune_json::parse_unique(text.trim()).unwrap_or_else(|_| value.clone())
        }
        other => other.clone(),
    }
}

/// A node of the tree of path names.
#[derive(Default)]
struct Node {
    value: Option<Value>,
    children: BTreeMap<String, Node>,
}

impl Node {
    /// Children with only numbers as names are the items of a list.
    fn into_value(self) -> Value {
        let Self { value, children } = self;
        if children.is_empty() {
            return value.unwrap_or(Value::Null);
        }
        let number = |name: &String| name.parse::<usize>().ok();
        if children.keys().all(|name| number(name).is_some()) {
            let mut items: Vec<(Option<usize>, Node)> = children
                .into_iter()
                .map(|(name, node)| (number(&name), node))
                .collect();
            items.sort_by_key(|(number, _)| *number);
            return items
                .into_iter()
                .map(|(_, node)| node.into_value())
                .collect();
        }
        let field = |(name, node): (String, Node)| (name, node.into_value());
        children.into_iter().map(field).collect()
    }
}

/// The items of a list whose attributes are named `PREFIX.N.PATH`.
pub(super) fn indexed(attributes: &Map<String, Value>, prefix: &str) -> Vec<Value> {
    let mut root = Node::default();
    for (name, value) in attributes {
        let path = name
            .strip_prefix(prefix)
            .and_then(|rest| rest.strip_prefix('.'));
        let Some(path) = path.filter(|path| path.split('.').count() <= MAX_PARTS) else {
            continue;
        };
        let mut node = &mut root;
        for part in path.split('.') {
            node = node.children.entry(part.to_owned()).or_default();
        }
        node.value = Some(value.clone());
    }
    match root.into_value() {
        Value::Array(items) => items,
        _ => Vec::new(),
    }
}
