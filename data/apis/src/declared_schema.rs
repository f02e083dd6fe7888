//! Argument names and type names declared by a JSON Schema.
//!
//! Undeclared keys are an error, although JSON Schema allows additional properties by default: in
//! calls they are nearly always misspellings. A tool that accepts any key declares
//! `additionalProperties`.

use jsonschema::paths::{Location, LocationSegment};
use serde_json::{Map, Value};

use super::declared::{DeclaredBy, DeclaredNames, json_type};
use super::error::ToolsError;

/// Keywords other than `properties` that declare arguments; with them, `properties` is not the full
/// list.
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

/// Whether parameters are a JSON Schema of an object. Otherwise they are a map of parameters by
/// name, as in xLAM's rows, or empty.
pub fn is_schema(parameters: &Value) -> bool {
    let is_said = |keyword: &&str| parameters.get(keyword).is_some();
    let has_type = parameters.get("type").is_some_and(|kind| !kind.is_object());
    has_type || properties(parameters).is_some() || OPENING.iter().any(is_said)
}

pub(super) fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties")?.as_object()
}

/// The properties of a schema, if it accepts no others.
pub(super) fn closed_properties(schema: &Value) -> Option<&Map<String, Value>> {
    let is_open = |keyword: &&str| match schema.get(keyword) {
        None => false,
        Some(value) => *keyword != "additionalProperties" || *value != Value::Bool(false),
    };
    properties(schema).filter(|_| !OPENING.iter().any(is_open))
}

/// The argument names declared by a schema.
pub fn declared_names<'s>(called: &'s str, schema: &'s Value, by: DeclaredBy) -> DeclaredNames<'s> {
    let names = |map: &'s Map<String, Value>| map.keys().map(String::as_str).collect();
    let required = schema.get("required").and_then(Value::as_array);
    DeclaredNames {
        called,
        only: closed_properties(schema).map(names),
        required: required
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect(),
        by,
    }
}

/// The API or tool that is called, and the source of its declaration.
#[derive(Debug, Clone, Copy)]
pub struct Declared<'a> {
    /// Name of the API or tool.
    pub called: &'a str,
    /// Source of the declaration.
    pub by: DeclaredBy,
}

impl Declared<'_> {
    /// Rejects undeclared keys in the objects inside a valid value at `field`.
    ///
    /// # Errors
    ///
    /// - an object has a key that the schema does not declare, and the schema lists its keys
    pub fn check_nested_keys(
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
                        self.check_nested_keys(schema, value, &format!("{field}.{name}"))?;
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
                        self.check_nested_keys(schema, item, &format!("{field}[{item_idx}]"))?;
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The schema with JSON Schema type names.
pub fn with_json_types(schema: &Value) -> Value {
    let mut converted = schema.clone();
    rename_types(&mut converted);
    converted
}

/// Replaces Python's and OpenAPI's type names by those of JSON Schema and removes unknown ones. The
/// tools of many public data sets use `dict`, `float` and `any`.
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
                match convert_types(types) {
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

/// A type or a list of types; `None` if a name is unknown.
fn convert_types(types: &Value) -> Option<Value> {
    match types {
        Value::String(word) if word == "null" => Some(types.clone()),
        Value::String(word) => json_type(word).map(Value::from),
        Value::Array(words) => words.iter().map(convert_types).collect(),
        other => Some(other.clone()),
    }
}

/// Path inside a value in the notation of fields, such as `.days[0]`.
pub fn field_path(location: &Location) -> String {
    let step = |segment: LocationSegment<'_>| match segment {
        LocationSegment::Property(name) => format!(".{name}"),
        LocationSegment::Index(idx) => format!("[{idx}]"),
    };
    location.into_iter().map(step).collect()
}
