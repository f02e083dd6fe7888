//! Builds the JSON Schema of an API call from the API's document.

use serde_json::{Map, Value, json};

use super::declared::json_type;
use super::declared_schema::{closed_properties, with_json_types};
use super::document::{ApiDocument, ApiParameter};

impl ApiDocument {
    /// Schema of `{"name": ..., "arguments": {...}}` with the API's name and its parameters in
    /// document order. All required parameters must be present, and unknown ones are rejected. A
    /// parameter has its declared type if the source's type name is known, and accepts any value
    /// otherwise. A parameter with a schema follows it and rejects keys that the schema does not
    /// declare. Keywords that constrained decoding cannot enforce, such as `uniqueItems` and `not`,
    /// are left to the later check of the call.
    pub fn call_schema(&self) -> Value {
        let properties: Map<String, Value> = self
            .parameters()
            .map(|parameter| (parameter.name.clone(), parameter.call_schema()))
            .collect();
        let required: Vec<&str> = self
            .required_parameters
            .iter()
            .map(|parameter| parameter.name.as_str())
            .collect();
        json!({
            "type": "object",
            "properties": {
                "name": {"const": self.call_name()},
                "arguments": {
                    "type": "object",
                    "properties": properties,
                    "required": required,
                    "additionalProperties": false,
                },
            },
            "required": ["name", "arguments"],
            "additionalProperties": false,
        })
    }
}

impl ApiParameter {
    /// An array or object without a schema accepts any contents.
    fn call_schema(&self) -> Value {
        if let Some(schema) = &self.schema {
            return enforceable_schema(&with_json_types(schema.value()));
        }
        match json_type(&self.kind) {
            Some(name) => json!({"type": name}),
            None => json!({}),
        }
    }
}

/// Keywords that constrained decoding cannot enforce, and annotations that do not restrict values.
const LEFT_TO_CHECKS: [&str; 18] = [
    "$schema",
    "contains",
    "contentEncoding",
    "contentMediaType",
    "default",
    "dependentRequired",
    "dependentSchemas",
    "deprecated",
    "description",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "title",
    "uniqueItems",
];

/// The schema for constrained decoding: rejects undeclared keys and omits keywords that cannot be
/// enforced.
fn enforceable_schema(schema: &Value) -> Value {
    let Value::Object(keywords) = schema else {
        return schema.clone();
    };
    let is_closed = closed_properties(schema).is_some();
    let mut allowed = Map::new();
    for (keyword, value) in keywords {
        let each = |values: &Map<String, Value>| -> Map<String, Value> {
            let one =
                |(name, schema): (&String, &Value)| (name.clone(), enforceable_schema(schema));
            values.iter().map(one).collect()
        };
        match (keyword.as_str(), value) {
            (name, _) if LEFT_TO_CHECKS.contains(&name) => {}
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(all)) => {
                allowed.insert(keyword.clone(), Value::Object(each(all)));
            }
            ("oneOf" | "anyOf", Value::Array(branches)) if !allowed.contains_key("anyOf") => {
                allowed.insert(
                    "anyOf".to_owned(),
                    branches.iter().map(enforceable_schema).collect(),
                );
            }
            ("oneOf" | "anyOf", _) => {}
            ("allOf" | "prefixItems", Value::Array(branches)) => {
                allowed.insert(
                    keyword.clone(),
                    branches.iter().map(enforceable_schema).collect(),
                );
            }
            ("items" | "additionalProperties", inner) => {
                allowed.insert(keyword.clone(), enforceable_schema(inner));
            }
            _ => {
                allowed.insert(keyword.clone(), value.clone());
            }
        }
    }
    if is_closed {
        allowed.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    Value::Object(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(required: &[(&str, &str)], optional: &[(&str, &str)]) -> ApiDocument {
        let parameters = |names_and_types: &[(&str, &str)]| {
            let parameter = |(name, kind): &(&str, &str)| json!({"name": name, "type": kind});
            let names_and_types = names_and_types
                .iter()
                .map(parameter)
                .map(serde_json::from_value);
            names_and_types
                .collect::<Result<Vec<ApiParameter>, _>>()
                .unwrap()
        };
        ApiDocument {
            required_parameters: parameters(required),
            optional_parameters: parameters(optional),
            ..ApiDocument::new("Harbour", "berths")
        }
    }

    #[test]
    fn calls_are_valid_if_the_document_allows_them() {
        let document = document(
            &[("ship", "STRING"), ("draught", "float")],
            &[
                ("deck", "INTEGER"),
                ("when", "DATE (MM.DD)"),
                ("crew", "List"),
            ],
        );
        let validator = jsonschema::validator_for(&document.call_schema()).unwrap();
        let call = |arguments: Value| json!({"name": "Harbour/berths", "arguments": arguments});
        for (arguments, is_valid) in [
            (json!({"ship": "Ada", "draught": 3.5}), true),
            (
                json!({"ship": "Ada", "draught": 3, "deck": 2, "when": 4, "crew": []}),
                true,
            ),
            (json!({"ship": "Ada", "draught": 3, "when": "05.04"}), true),
            (json!({"ship": "Ada"}), false),
            (json!({"ship": 1, "draught": 3}), false),
            (json!({"ship": "Ada", "draught": "3"}), false),
            (json!({"ship": "Ada", "draught": 3, "deck": 2.5}), false),
            (json!({"ship": "Ada", "draught": 3, "mast": 1}), false),
        ] {
            assert_eq!(
                validator.is_valid(&call(arguments.clone())),
                is_valid,
                "{arguments}"
            );
        }
        assert!(!validator.is_valid(&json!({"name": "Harbour", "arguments": {}})));
    }

    #[test]
    fn a_parameter_schema_rejects_undeclared_keys_and_keeps_enforceable_keywords() {
        let schema = json!({"type": "object", "required": ["a"], "properties": {
            "a": {"type": "array", "uniqueItems": true, "items": {"oneOf": [
                {"type": "string", "description": "A name."}, {"type": "object"}]}},
            "b": {"type": "object", "additionalProperties": {"type": "integer"}}}});
        let document = json!({"api_name": "x", "required_parameters": [
            {"name": "q", "type": "object", "schema": schema}]});
        let document = ApiDocument::try_from(document).expect("a document");
        assert_eq!(
            document.call_schema()["properties"]["arguments"]["properties"]["q"],
            json!({"type": "object", "required": ["a"], "properties": {
                "a": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object"}]}},
                "b": {"type": "object", "additionalProperties": {"type": "integer"}}},
                "additionalProperties": false})
        );
    }
}
