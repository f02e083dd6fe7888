//! Makes a JSON Schema strict: declared keys are required and others are forbidden.
//!
//! A plain schema without `required` accepts `{}`, so a model that returns an empty object would
//! pass; the strict schema requires exactly the declared keys. The rule applies to every schema
//! object, including objects under `not` and `if`, where it can change the author's meaning. Report
//! the strict score next to the plain score, never on its own.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

/// Keywords whose value is data, not a schema.
const DATA_KEYWORDS: [&str; 5] = ["enum", "const", "default", "example", "examples"];

/// Keywords whose value maps names to schemas.
const MAP_KEYWORDS: [&str; 7] = [
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
    "dependencies",
    "dependentRequired",
];

/// Keywords that already define the rules for undeclared keys.
const OPENNESS_KEYWORDS: [&str; 3] = [
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
];

/// Returns the schema with undeclared keys forbidden and all declared keys required, in every
/// object that has `properties`.
///
/// An object with keywords for additional, pattern or unevaluated properties keeps these keywords.
/// Values under `enum`, `const`, `default` and `examples` are data and are not changed.
pub fn strict_keys(schema: &Value) -> Value {
    rewrite_schema(schema, Declared::Required)
}

/// Forbids undeclared keys as [`strict_keys`] does, without making any key required.
pub fn declared_keys(schema: &Value) -> Value {
    rewrite_schema(schema, Declared::AsWritten)
}

/// Which of the declared keys become required.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Declared {
    Required,
    AsWritten,
}

fn rewrite_schema(schema: &Value, declared: Declared) -> Value {
    match schema {
        Value::Object(keywords) => Value::Object(rewrite_object(keywords, declared)),
        Value::Array(schemas) => schemas
            .iter()
            .map(|s| rewrite_schema(s, declared))
            .collect(),
        scalar => scalar.clone(),
    }
}

fn rewrite_object(keywords: &Map<String, Value>, declared: Declared) -> Map<String, Value> {
    let mut strict: Map<String, Value> = keywords
        .iter()
        .map(|(keyword, value)| (keyword.clone(), rewrite_keyword(keyword, value, declared)))
        .collect();
    let Some(properties) = keywords.get("properties").and_then(Value::as_object) else {
        return strict;
    };
    if !OPENNESS_KEYWORDS
        .iter()
        .any(|keyword| keywords.contains_key(*keyword))
    {
        strict.insert("additionalProperties".to_owned(), json!(false));
    }
    if declared == Declared::Required {
        strict.insert("required".to_owned(), required_keys(keywords, properties));
    }
    strict
}

fn rewrite_keyword(keyword: &str, value: &Value, declared: Declared) -> Value {
    match value {
        _ if DATA_KEYWORDS.contains(&keyword) => value.clone(),
        Value::Object(schemas) if MAP_KEYWORDS.contains(&keyword) => schemas
            .iter()
            .map(|(name, schema)| (name.clone(), rewrite_schema(schema, declared)))
            .collect(),
        _ => rewrite_schema(value, declared),
    }
}

/// Returns the keys already required, then every declared key.
fn required_keys(keywords: &Map<String, Value>, properties: &Map<String, Value>) -> Value {
    let required = keywords.get("required").and_then(Value::as_array);
    let required = required.map(Vec::as_slice).unwrap_or_default();
    let already_required: HashSet<&str> = required.iter().filter_map(Value::as_str).collect();
    let declared = properties
        .keys()
        .filter(|key| !already_required.contains(key.as_str()));
    required
        .iter()
        .cloned()
        .chain(declared.map(|key| json!(key)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declared_keys_are_required_and_others_forbidden_at_every_level() {
        let schema = json!({
            "properties": {"a": {"items": {"properties": {"b": {}}}}, "c": {"$ref": "#/$defs/d"}},
            "required": ["c"],
            "$defs": {"d": {"properties": {"e": {"anyOf": [{"properties": {"f": {}}}]}}}},
        });
        let closed = |required: &[&str]| json!({"required": required, "open": false});
        let strict = strict_keys(&schema);
        let required_and_open = |pointer: &str| {
            let part = strict.pointer(pointer).expect("part");
            json!({"required": part["required"], "open": part["additionalProperties"]})
        };
        assert_eq!(required_and_open(""), closed(&["c", "a"]));
        assert_eq!(required_and_open("/properties/a/items"), closed(&["b"]));
        assert_eq!(required_and_open("/$defs/d"), closed(&["e"]));
        assert_eq!(
            required_and_open("/$defs/d/properties/e/anyOf/0"),
            closed(&["f"])
        );
    }

    #[test]
    fn optional_declared_keys_may_be_absent() {
        let schema = json!({"properties": {"a": {"properties": {"b": {}}}, "c": {}},
            "required": ["c"]});
        let declared = declared_keys(&schema);
        assert_eq!(declared["required"], json!(["c"]));
        assert_eq!(declared["additionalProperties"], json!(false));
        assert_eq!(
            declared["properties"]["a"],
            json!({"properties": {"b": {}}, "additionalProperties": false})
        );
    }

    #[test]
    fn keywords_for_undeclared_keys_are_kept() {
        for keyword in OPENNESS_KEYWORDS {
            let strict = strict_keys(&json!({"properties": {"a": {}}, keyword: {}}));
            let expected = (keyword == "additionalProperties").then(|| json!({}));
            assert_eq!(strict.get("additionalProperties").cloned(), expected);
            assert_eq!(strict["required"], json!(["a"]));
        }
    }

    #[test]
    fn properties_named_like_keywords_and_data_are_not_schemas() {
        let schema = json!({"properties": {
            "properties": {"type": "string"},
            "kind": {"const": {"properties": {"x": 1}}, "enum": [{"properties": {}}]},
        }});
        let strict = strict_keys(&schema);
        assert_eq!(strict["properties"], schema["properties"]);
        assert_eq!(strict["required"], json!(["properties", "kind"]));
    }
}
