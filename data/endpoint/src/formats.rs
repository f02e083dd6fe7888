//! Spells OpenAI's `response_format` for servers that know an older spelling.
//!
//! OpenAI and vLLM read `json_schema`. llama-cpp-python, for one, knows `text` and `json_object`
//! only and takes the schema beside the type, as JSON mode had it before.

use serde_json::{Value, json};

/// The schema beside the type; `None` for a format that asks for no schema.
pub(super) fn older(format: &Value) -> Option<Value> {
    let schema = format.pointer("/json_schema/schema")?;
    (format["type"] == "json_schema").then(|| json!({"type": "json_object", "schema": schema}))
}

/// Whether a refusal says that the server knows `json_object` in the place of what it was sent.
pub(super) fn names_older(refusal: &str) -> bool {
    refusal.contains("response_format") && refusal.contains("json_object")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_stands_beside_the_older_type() {
        let schema = json!({"type": "object"});
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        let expected = json!({"type": "json_object", "schema": {"type": "object"}});
        assert_eq!(older(&format), Some(expected.clone()));
        for other in [json!({"type": "json_object"}), json!("text"), expected] {
            assert_eq!(older(&other), None);
        }
    }
}
