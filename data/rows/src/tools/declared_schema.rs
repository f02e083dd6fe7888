//! What a JSON Schema of arguments declares: the names that there are, and the words for types.
//!
//! The decision to question: a key that a schema does not declare is a fault, though JSON Schema
//! lets undeclared properties pass. In calls it is nearly always a misspelling; a tool that takes
//! any key says so with `additionalProperties`.

use jsonschema::paths::{Location, LocationSegment};
use serde_json::{Map, Value};

use super::declared::{DeclaredBy, DeclaredNames, json_type};
use super::error::ToolsError;

/// What decides of arguments beside `properties`, so that they alone do not declare all.
const OPENING: [&str; 12] = [
    "$ref",
    "$dynamicRef",
    "additionalProperties",
    "allOf",
    "anyOf",
    "dependentSchemas",
    "else",
    "if",
    "oneOf",
    "patternProperties",
    "then",
    "unevaluatedProperties",
];

/// Whether parameters are a JSON Schema of an object. Others are lists of parameters by name, as in
/// xLAM's rows, or nothing.
pub(crate) fn is_schema(parameters: &Value) -> bool {
    let is_said = |keyword: &&str| parameters.get(keyword).is_some();
    let has_type = parameters.get("type").is_some_and(|kind| !kind.is_object());
    has_type || properties(parameters).is_some() || OPENING.iter().any(is_said)
}

pub(super) fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties")?.as_object()
}

/// The properties of a schema that has no others.
pub(super) fn only_properties(schema: &Value) -> Option<&Map<String, Value>> {
    let is_open = |keyword: &&str| match schema.get(keyword) {
        None => false,
        Some(value) => *keyword != "additionalProperties" || *value != Value::Bool(false),
    };
    properties(schema).filter(|_| !OPENING.iter().any(is_open))
}

/// The names that a schema of arguments declares.
pub(crate) fn declared_names<'s>(
    called: &'s str,
    schema: &'s Value,
    by: DeclaredBy,
) -> DeclaredNames<'s> {
    let names = |map: &'s Map<String, Value>| map.keys().map(String::as_str).collect();
    let required = schema.get("required").and_then(Value::as_array);
    DeclaredNames {
        called,
        only: only_properties(schema).map(names),
        required: required
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect(),
        by,
    }
}

/// What is called, and who declares its arguments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Declared<'a> {
    /// The name of what is called.
    pub(crate) called: &'a str,
    /// Who says which arguments there are.
    pub(crate) by: DeclaredBy,
}

impl Declared<'_> {
    /// The rule of undeclared arguments for the objects inside of a valid value, which stands at
    /// `field`.
    ///
    /// # Errors
    ///
    /// - a key of an object is not declared, where the schema says which there are
    pub(crate) fn undeclared_inside(
        self,
        schema: &Value,
        value: &Value,
        field: &str,
    ) -> Result<(), ToolsError> {
        match value {
            Value::Object(fields) => {
                DeclaredNames {
                    required: Vec::new(),
                    ..declared_names(self.called, schema, self.by)
                }
                .check(fields, field)?;
                let declared = properties(schema);
                for (name, value) in fields {
                    if let Some(schema) = declared.and_then(|declared| declared.get(name)) {
                        self.undeclared_inside(schema, value, &format!("{field}.{name}"))?;
                    }
                }
                Ok(())
            }
            Value::Array(items) => {
                let schema = schema
                    .get("items")
                    .filter(|_| schema.get("prefixItems").is_none());
                for (item_idx, item) in items.iter().enumerate() {
                    if let Some(schema) = schema {
                        self.undeclared_inside(schema, item, &format!("{field}[{item_idx}]"))?;
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The schema with JSON Schema's words for types.
pub(crate) fn typed(schema: &Value) -> Value {
    let mut typed = schema.clone();
    rename_types(&mut typed);
    typed
}

/// Puts JSON Schema's words for types in the place of Python's and OpenAPI's, and takes out words
/// that none of them has: `dict`, `float` and `any` stand in the tools of many public data sets.
fn rename_types(schema: &mut Value) {
    const NAMED: [&str; 5] = [
        "$defs",
        "definitions",
        "dependentSchemas",
        "patternProperties",
        "properties",
    ];
    const VALUES: [&str; 5] = ["const", "default", "enum", "examples", "required"];
    match schema {
        Value::Array(schemas) => schemas.iter_mut().for_each(rename_types),
        Value::Object(keywords) => {
            if let Some(types) = keywords.get_mut("type") {
                match renamed(types) {
                    Some(renamed) => *types = renamed,
                    None => drop(keywords.shift_remove("type")),
                }
            }
            for (keyword, value) in keywords {
                match value {
                    Value::Object(schemas) if NAMED.contains(&keyword.as_str()) => {
                        schemas.values_mut().for_each(rename_types);
                    }
                    _ if VALUES.contains(&keyword.as_str()) => {}
                    inner => rename_types(inner),
                }
            }
        }
        _ => {}
    }
}

/// A type, or a list of some; `None` if a word is unknown.
fn renamed(types: &Value) -> Option<Value> {
    match types {
        Value::String(word) if word == "null" => Some(types.clone()),
        Value::String(word) => json_type(word).map(Value::from),
        Value::Array(words) => words.iter().map(renamed).collect(),
        other => Some(other.clone()),
    }
}

/// A place in a value as fields are written, such as `.days[0]`.
pub(crate) fn dotted(place: &Location) -> String {
    let step = |segment: LocationSegment<'_>| match segment {
        LocationSegment::Property(name) => format!(".{name}"),
        LocationSegment::Index(idx) => format!("[{idx}]"),
    };
    place.into_iter().map(step).collect()
}
