//! Builds a grammar's tools from a row's tools: names with JSON Schemas of their arguments.
//!
//! There are two kinds of specifications. The benchmark's arithmetic functions have a bare map of
//! parameters with types such as `int or float`; its other functions have a JSON Schema. Calls are
//! scored by the argument order of the function, but the schemas list their keys alphabetically, so
//! any order is allowed. If there are more than three parameters and some are optional, only the
//! number of required arguments is enforced. A value has its parameter's type or is a reference to
//! a result.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use tooltune_grammar::{CallFormat, SequenceFormat};
use tooltune_json::python::dumps;

use super::parse::Parser;
use super::row::{NestfulRow, ToolSpec};

/// Maximum number of parameters for which all orders are listed.
const MAX_ORDERED: usize = 3;

impl Parser {
    /// The call format of this parser; `None` if the format is not JSON.
    pub fn call_format(self) -> Option<CallFormat> {
        let format = match self {
            Self::JsonList | Self::Llama | Self::Hammer | Self::Lenient => SequenceFormat::List,
            Self::Granite31 => SequenceFormat::MarkedList,
            Self::Xlam => SequenceFormat::ToolCalls,
            Self::Hermes => SequenceFormat::Tagged,
            Self::ToolAce => return None,
        };
        Some(CallFormat::Sequence(format))
    }

    /// Strings at which this parser splits its input, even inside JSON strings.
    pub fn stop_strings(self) -> &'static [&'static str] {
        match self {
            Self::Lenient => &["<think>", "</think>"],
            _ => &[],
        }
    }
}

impl NestfulRow {
    /// The tools as `{"name", "parameters"}`, for a grammar of their calls.
    ///
    /// Arguments named `arg_0`, `arg_1`, .. must be in that order; the module documentation
    /// describes the order of other arguments. Values have the type in the specification; any type
    /// is allowed if it is missing or unknown. They may also be references such as `$var_1.result$`
    /// to an output of one of the tools. Items of lists may also be references.
    pub fn call_tools(&self) -> Vec<Value> {
        let outputs = self.tools.iter().flat_map(|tool| &tool.outputs);
        let outputs: BTreeSet<String> = outputs.map(|output| regex::escape(output)).collect();
        let outputs: Vec<String> = outputs.into_iter().collect();
        let reference = json!({
            "type": "string",
            "pattern": format!(r"^\$var_?[0-9]{{1,3}}\.({})\$$", outputs.join("|")),
        });
        let mut names = BTreeSet::new();
        let is_first = |tool: &&ToolSpec| names.insert(tool.name.clone());
        self.tools
            .iter()
            .filter(is_first)
            .map(
                |tool| json!({"name": tool.name, "parameters": tool.parameters_schema(&reference)}),
            )
            .collect()
    }
}

/// The parameters of a tool in its specification.
struct Declared {
    properties: Map<String, Value>,
    required: Vec<Value>,
    /// Other parts of the schema, usually definitions.
    other_keywords: Map<String, Value>,
}

impl ToolSpec {
    fn parameters_schema(&self, reference: &Value) -> Value {
        let Declared {
            properties,
            required,
            other_keywords: keywords,
        } = self.declared();
        let is_numbered =
            |(i, name): (usize, &String)| name.strip_prefix("arg_") == Some(&i.to_string());
        let is_numbered = properties.keys().enumerate().all(is_numbered);
        let properties: Vec<(String, Value)> = properties
            .into_iter()
            .map(|(name, schema)| (name, or_reference(to_json_schema(&schema), reference)))
            .collect();
        let object = |names: &str, schemas: Map<String, Value>| json!({"type": "object", names: schemas, "additionalProperties": false});
        let mut schema = match properties.len() {
            _ if is_numbered => object("properties", properties.into_iter().collect()),
            n if n <= MAX_ORDERED => {
                let in_order = |order: Vec<(String, Value)>| {
                    let mut schema = object("properties", order.into_iter().collect());
                    schema["required"] = json!(required);
                    schema
                };
                let orders: Vec<Value> = permutations(&properties)
                    .into_iter()
                    .map(in_order)
                    .collect();
                json!({"anyOf": orders})
            }
            _ => {
                let by_name = properties.into_iter();
                let by_name =
                    by_name.map(|(name, schema)| (format!("^{}$", regex::escape(&name)), schema));
                let mut schema = object("patternProperties", by_name.collect());
                // Keys never repeat, so this requires all parameters if none is optional.
                schema["minProperties"] = json!(required.len());
                schema
            }
        };
        if let Some(fields) = schema.as_object_mut() {
            fields.extend(keywords);
        }
        schema
    }

    fn declared(&self) -> Declared {
        let parameters = self.spec.get("parameters").map(dumps);
        let parameters = parameters.and_then(|text| tooltune_json::parse(&text).ok());
        let Some(Value::Object(mut fields)) = parameters else {
            return Declared::from_properties(Map::new());
        };
        let is_schema = fields.get("type").is_some_and(|name| name == "object")
            && fields.get("properties").is_some_and(Value::is_object);
        let Some(Value::Object(properties)) = fields.remove("properties").filter(|_| is_schema)
        else {
            return Declared::from_properties(fields);
        };
        let required = fields.get("required").and_then(Value::as_array);
        let required = required.into_iter().flatten();
        let required =
            required.filter(|name| name.as_str().is_some_and(|n| properties.contains_key(n)));
        Declared {
            required: required.cloned().collect(),
            properties,
            other_keywords: fields
                .into_iter()
                .filter(|(key, _)| matches!(key.as_str(), "$defs" | "definitions"))
                .collect(),
        }
    }
}

impl Declared {
    /// Parameters from a bare map, which does not mark parameters as required.
    fn from_properties(properties: Map<String, Value>) -> Self {
        Self {
            properties,
            required: Vec::new(),
            other_keywords: Map::new(),
        }
    }
}

/// All permutations of a few items.
fn permutations<T: Clone>(items: &[T]) -> Vec<Vec<T>> {
    let Some((first, rest)) = items.split_first() else {
        return vec![Vec::new()];
    };
    let with_first = |order: Vec<T>| {
        (0..=order.len()).map(move |position| {
            let mut order = order.clone();
            order.insert(position, first.clone());
            order
        })
    };
    permutations(rest)
        .into_iter()
        .flat_map(with_first)
        .collect()
}

/// A parameter's schema with type names translated to JSON Schema; unknown types are dropped.
fn to_json_schema(schema: &Value) -> Value {
    let Value::Object(fields) = schema else {
        return json!({});
    };
    let mut typed = Map::new();
    match fields.get("type") {
        None => {}
        Some(Value::String(type_names)) => match schema_from_words(type_names) {
            Some(Value::Object(schema)) => typed.extend(schema),
            _ => return json!({}),
        },
        Some(names) => {
            typed.insert("type".to_owned(), names.clone());
        }
    }
    for (key, part) in fields {
        let part = match key.as_str() {
            "type" | "description" | "title" | "default" | "example" | "examples" => continue,
            "items" | "additionalProperties" if part.is_object() => typed_part(part),
            "properties" => match part {
                Value::Object(parts) => {
                    let parts = parts.iter();
                    let parts = parts.map(|(name, part)| (name.clone(), typed_part(part)));
                    Value::Object(parts.collect())
                }
                part => part.clone(),
            },
            // Some specifications mark an individual parameter as required.
            "required" if !part.is_array() => continue,
            _ => part.clone(),
        };
        typed.insert(key.clone(), part);
    }
    Value::Object(typed)
}

fn typed_part(schema: &Value) -> Value {
    match schema {
        Value::Object(_) => to_json_schema(schema),
        other => other.clone(),
    }
}

/// Converts type names: `list of int or float` to a list, `int or float` to a number.
fn schema_from_words(type_names: &str) -> Option<Value> {
    let type_names = type_names.trim().to_lowercase();
    for list in ["list of ", "array of "] {
        if let Some(items) = type_names.strip_prefix(list) {
            let items = schema_from_words(items.trim()).unwrap_or_else(|| json!({}));
            return Some(json!({"type": "array", "items": items}));
        }
    }
    let names: Option<BTreeSet<&str>> = type_names
        .split(" or ")
        .map(|type_name| json_type(type_name.trim()))
        .collect();
    let mut names = names?;
    if names.contains("number") {
        names.remove("integer");
    }
    let names: Vec<&str> = names.into_iter().collect();
    Some(match names.as_slice() {
        [name] => json!({"type": name}),
        names => json!({"type": names}),
    })
}

fn json_type(type_name: &str) -> Option<&'static str> {
    Some(match type_name {
        "int" | "integer" => "integer",
        "float" | "double" | "number" => "number",
        "str" | "string" => "string",
        "bool" | "boolean" => "boolean",
        "list" | "array" | "tuple" => "array",
        "dict" | "object" => "object",
        "none" | "null" => "null",
        _ => return None,
    })
}

/// Allows a reference in addition to the schema, also for items of a list.
fn or_reference(mut schema: Value, reference: &Value) -> Value {
    if let Some(items) = schema.get_mut("items").filter(|items| items.is_object()) {
        *items = with_reference(items.take(), reference);
    }
    with_reference(schema, reference)
}

fn with_reference(schema: Value, reference: &Value) -> Value {
    let is_any = schema.as_object().is_some_and(Map::is_empty);
    let is_text = schema == json!({"type": "string"});
    if is_any || is_text {
        schema
    } else {
        json!({"anyOf": [schema, reference]})
    }
}
