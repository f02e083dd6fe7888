//! Makes the JSON Schema of a call of an API from its document.

use serde_json::{Map, Value, json};

use super::declared::json_type;
use super::document::{ApiDocument, ApiParameter};

impl ApiDocument {
    /// The schema of `{"name": ..., "arguments": {...}}`: the API's name, all required parameters,
    /// no unknown ones, in the order of the document, each of its type where the source's spelling
    /// of the type is known, and any value where it is not.
    pub fn call_schema(&self) -> Value {
        let properties: Map<String, Value> = self
            .parameters()
            .map(|parameter| (parameter.name.clone(), parameter.schema()))
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
    /// An array or object has any contents.
    fn schema(&self) -> Value {
        match json_type(&self.kind) {
            Some(name) => json!({"type": name}),
            None => json!({}),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(required: &[(&str, &str)], optional: &[(&str, &str)]) -> ApiDocument {
        let parameters = |given: &[(&str, &str)]| {
            let parameter = |(name, kind): &(&str, &str)| json!({"name": name, "type": kind});
            let given = given.iter().map(parameter).map(serde_json::from_value);
            given.collect::<Result<Vec<ApiParameter>, _>>().unwrap()
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
}
