//! Schemas whose lists and texts end.
//!
//! A small model may repeat one entry of a list without end. Nothing in a schema without `maxItems`
//! says that it must stop, so that the text is cut and is no JSON.

use serde_json::{Map, Value, json};

/// Entries of a list that says no number of its own.
pub const MOST_ENTRIES: u64 = 16;

/// Characters of a text that says no number of its own.
pub const MOST_CHARACTERS: u64 = 256;

/// Keywords whose value is a schema, or a list of them, that narrows what is allowed.
const SCHEMAS: [&str; 10] = [
    "items",
    "prefixItems",
    "additionalItems",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "allOf",
    "anyOf",
    "then",
    "else",
];

/// Keywords whose value has a schema for each name.
const NAMED: [&str; 5] = [
    "properties",
    "patternProperties",
    "dependentSchemas",
    "$defs",
    "definitions",
];

/// The schema with at most [`MOST_ENTRIES`] entries in each list and [`MOST_CHARACTERS`] characters in
/// each text that it sets no limit to.
///
/// What it allows the schema allows, but for a `oneOf` or a `not` that is met through a definition:
/// whoever uses it validates by the schema itself.
pub fn short(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => Value::Object(short_fields(fields)),
        Value::Array(schemas) => schemas.iter().map(short).collect(),
        other => other.clone(),
    }
}

fn short_fields(fields: &Map<String, Value>) -> Map<String, Value> {
    let mut made = fields.clone();
    for (keyword, value) in &mut made {
        if SCHEMAS.contains(&keyword.as_str()) {
            *value = short(value);
        } else if NAMED.contains(&keyword.as_str())
            && let Some(named) = value.as_object_mut()
        {
            named
                .values_mut()
                .for_each(|schema| *schema = short(schema));
        }
    }
    let is_said = |keywords: &[&str]| keywords.iter().any(|keyword| fields.contains_key(*keyword));
    // Values that are listed, and those of another place, have their own limits.
    if is_said(&["enum", "const", "$ref"]) {
        return made;
    }
    let mut limit = |kind: &str, most: &str, least: &str, limit: u64, ends_by: &[&str]| {
        if may_be(fields, kind) && !is_said(&[most]) && !is_said(ends_by) {
            let least = fields.get(least).and_then(Value::as_f64).unwrap_or(0.0);
            made.insert(most.to_owned(), json!(limit.max(least as u64)));
        }
    };
    limit("array", "maxItems", "minItems", MOST_ENTRIES, &[]);
    let forms = ["pattern", "format"];
    limit("string", "maxLength", "minLength", MOST_CHARACTERS, &forms);
    made
}

/// Whether a schema says that its values are, or may be, of a type.
fn may_be(fields: &Map<String, Value>, kind: &str) -> bool {
    match fields.get("type") {
        Some(Value::String(one)) => one == kind,
        Some(Value::Array(several)) => several.iter().any(|one| one == kind),
        _ => false,
    }
}
