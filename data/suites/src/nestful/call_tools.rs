//! Makes tools of a grammar from a row's: names with JSON Schemas of their arguments.
//!
//! Two kinds of specification exist. The benchmark's arithmetic has a bare map of parameters, whose
//! types are words such as `int or float`; its other functions have a JSON Schema. The decision to
//! question: the keys of such a schema are sorted by the alphabet, while calls are scored by the
//! order of the function, so that any order is allowed; and where there are more than three of which some
//! are optional, as many as are required are asked for. A value is of its parameter's type or a reference to a result.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use tooltune_grammar::{CallFormat, SequenceFormat};
use tooltune_rows::python::dumps;

use super::parse::Parser;
use super::row::{NestfulRow, ToolSpec};

/// Parameters of a tool whose orders are all listed.
const MAX_ORDERED: usize = 3;

impl Parser {
    /// The form of what this parser reads; none where that is no JSON.
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

    /// Texts at which this parser cuts what it reads, in strings too.
    pub fn cutting_texts(self) -> &'static [&'static str] {
        match self {
            Self::Lenient => &["<think>", "</think>"],
            _ => &[],
        }
    }
}

impl NestfulRow {
    /// The tools on offer as `{"name", "parameters"}`, for a grammar of their calls.
    ///
    /// Arguments called `arg_0`, `arg_1`, .. keep that order; see the module for those of other
    /// tools. Values are of the type that the specification names, free where it names none that
    /// is known, or a reference such as `$var_1.result$` to an output that a tool here has;
    /// references may be items of lists too.
    pub fn call_tools(&self) -> Vec<Value> {
        let outputs = self.tools.iter().flat_map(|tool| &tool.outputs);
        let outputs: BTreeSet<String> = outputs.map(|output| regex::escape(output)).collect();
        let outputs: Vec<String> = outputs.into_iter().collect();
        let reference = json!({
            "type": "string",
            "pattern": format!(r"^\$var_?[0-9]{{1,3}}\.({})\$$", outputs.join("|")),
        });
        let mut names = BTreeSet::new();
        let first = |tool: &&ToolSpec| names.insert(tool.name.clone());
        self.tools
            .iter()
            .filter(first)
            .map(
                |tool| json!({"name": tool.name, "parameters": tool.parameters_schema(&reference)}),
            )
            .collect()
    }
}

/// The parameters of a tool as its specification has them.
struct Declared {
    properties: Map<String, Value>,
    required: Vec<Value>,
    /// What else a schema says: definitions, mostly.
    beside: Map<String, Value>,
}

impl ToolSpec {
    fn parameters_schema(&self, reference: &Value) -> Value {
        let Declared {
            properties,
            required,
            beside,
        } = self.declared();
        let is_numbered =
            |(i, name): (usize, &String)| name.strip_prefix("arg_") == Some(&i.to_string());
        let is_numbered = properties.keys().enumerate().all(is_numbered);
        let properties: Vec<(String, Value)> = properties
            .into_iter()
            .map(|(name, schema)| (name, or_reference(typed(&schema), reference)))
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
                let orders: Vec<Value> = orders(&properties).into_iter().map(in_order).collect();
                json!({"anyOf": orders})
            }
            _ => {
                let by_name = properties.into_iter();
                let by_name =
                    by_name.map(|(name, schema)| (format!("^{}$", regex::escape(&name)), schema));
                let mut schema = object("patternProperties", by_name.collect());
                // No key is written twice, so that these are all of them where none is optional.
                schema["minProperties"] = json!(required.len());
                schema
            }
        };
        if let Some(fields) = schema.as_object_mut() {
            fields.extend(beside);
        }
        schema
    }

    fn declared(&self) -> Declared {
        let parameters = self.spec.get("parameters").map(dumps);
        let parameters = parameters.and_then(|text| tooltune_rows::json::parse(&text).ok());
        let Some(Value::Object(mut fields)) = parameters else {
            return Declared::of_map(Map::new());
        };
        let is_schema = fields.get("type").is_some_and(|name| name == "object")
            && fields.get("properties").is_some_and(Value::is_object);
        let Some(Value::Object(properties)) = fields.remove("properties").filter(|_| is_schema)
        else {
            return Declared::of_map(fields);
        };
        let required = fields.get("required").and_then(Value::as_array);
        let required = required.into_iter().flatten();
        let required =
            required.filter(|name| name.as_str().is_some_and(|n| properties.contains_key(n)));
        Declared {
            required: required.cloned().collect(),
            properties,
            beside: fields
                .into_iter()
                .filter(|(key, _)| matches!(key.as_str(), "$defs" | "definitions"))
                .collect(),
        }
    }
}

impl Declared {
    /// A bare map, which says of no parameter that it is required.
    fn of_map(properties: Map<String, Value>) -> Self {
        Self {
            properties,
            required: Vec::new(),
            beside: Map::new(),
        }
    }
}

/// All orders of a few things.
fn orders<T: Clone>(things: &[T]) -> Vec<Vec<T>> {
    let Some((first, rest)) = things.split_first() else {
        return vec![Vec::new()];
    };
    let with_first = |order: Vec<T>| {
        (0..=order.len()).map(move |place| {
            let mut order = order.clone();
            order.insert(place, first.clone());
            order
        })
    };
    orders(rest).into_iter().flat_map(with_first).collect()
}

/// A parameter's schema with words for types as JSON Schema spells them; a type that is not known
/// says nothing.
fn typed(schema: &Value) -> Value {
    let Value::Object(fields) = schema else {
        return json!({});
    };
    let mut typed = Map::new();
    match fields.get("type") {
        None => {}
        Some(Value::String(words)) => match of_words(words) {
            Some(Value::Object(of_words)) => typed.extend(of_words),
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
            // Some write on the parameter itself whether it is required.
            "required" if !part.is_array() => continue,
            _ => part.clone(),
        };
        typed.insert(key.clone(), part);
    }
    Value::Object(typed)
}

fn typed_part(schema: &Value) -> Value {
    match schema {
        Value::Object(_) => typed(schema),
        other => other.clone(),
    }
}

/// `list of int or float` is a list, `int or float` a number.
fn of_words(words: &str) -> Option<Value> {
    let words = words.trim().to_lowercase();
    for list in ["list of ", "array of "] {
        if let Some(items) = words.strip_prefix(list) {
            let items = of_words(items.trim()).unwrap_or_else(|| json!({}));
            return Some(json!({"type": "array", "items": items}));
        }
    }
    let names: Option<BTreeSet<&str>> = words
        .split(" or ")
        .map(|word| of_word(word.trim()))
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

fn of_word(word: &str) -> Option<&'static str> {
    Some(match word {
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

/// What a schema allows, or a reference, which items of a list may be as well.
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
