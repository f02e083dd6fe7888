//! Converts OpenAI's `response_format` for servers that expect an older format.
//!
//! OpenAI and vLLM accept `json_schema`. llama-cpp-python, for example, accepts only `text` and
//! `json_object`, with the schema next to the type, as in the original JSON mode.

use serde_json::{Value, json};

/// The format with the schema next to the type; `None` for a format without a schema.
pub(super) fn older_format(format: &Value) -> Option<Value> {
    let schema = format.pointer("/json_schema/schema")?;
    (format["type"] == "json_schema").then(|| json!({"type": "json_object", "schema": schema}))
}

/// Whether a refusal shows that the server expects `json_object` instead.
pub(super) fn expects_older_format(refusal: &str) -> bool {
    refusal.contains("response_format") && refusal.contains("json_object")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_format_has_the_schema_next_to_its_type() {
        let schema = json!({"type": "object"});
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        let expected = json!({"type": "json_object", "schema": {"type": "object"}});
        assert_eq!(older_format(&format), Some(expected.clone()));
        for other in [json!({"type": "json_object"}), json!("text"), expected] {
            assert_eq!(older_format(&other), None);
        }
    }
}
