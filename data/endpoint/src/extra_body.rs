//! Additional fields of a request that the user sets.

use serde_json::{Map, Value};

use crate::http::is_secret_field;

/// Fields that the program sets in every request, or that change how a reply must be parsed, each
/// with the reason.
const OWN_FIELDS: [(&str, &str); 9] = [
    ("max_tokens", "each request has its own limit"),
    ("messages", "each request has its own messages"),
    (
        "model",
        "the option for the name of the server's model sets it",
    ),
    ("n", "one completion per request is read"),
    ("stream", "replies are read as one JSON object"),
    ("stream_options", "replies are read as one JSON object"),
    ("temperature", "each request has its own temperature"),
    ("tool_choice", "each request has its own tools"),
    ("tools", "each request has its own tools"),
];

/// Refuses additional fields that the program sets itself, because the program's value would
/// replace the user's.
///
/// # Errors
///
/// The field, and why it cannot be set.
pub fn check_extra_body(fields: &Map<String, Value>) -> Result<(), String> {
    let program_field = |name: &String| {
        OWN_FIELDS
            .iter()
            .find(|(program_field, _)| program_field == name)
    };
    match fields.keys().find_map(program_field) {
        Some((name, reason)) => Err(format!(
            "the field {name:?} cannot be set: {reason}; remove it"
        )),
        None => Ok(()),
    }
}

/// The fields with `***` in place of the values of fields whose names suggest a secret, such as
/// `api_key`, at any depth.
pub fn without_secret_fields(fields: &Map<String, Value>) -> Map<String, Value> {
    let masked_field = |(name, value): (&String, &Value)| {
        let value = match is_secret_field(name) && !value.is_null() {
            true => Value::from("***"),
            false => mask_secrets(value),
        };
        (name.clone(), value)
    };
    fields.iter().map(masked_field).collect()
}

fn mask_secrets(value: &Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(without_secret_fields(fields)),
        Value::Array(items) => items.iter().map(mask_secrets).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Map<String, Value> {
        value.as_object().cloned().expect("an object")
    }

    #[test]
    fn fields_of_the_program_are_refused() {
        for name in [
            "messages",
            "model",
            "stream",
            "n",
            "max_tokens",
            "temperature",
            "tools",
        ] {
            let error = check_extra_body(&fields(json!({"top_k": 3, name: []})));
            let error = error.expect_err(name);
            assert!(
                error.contains(&format!("{name:?} cannot be set")),
                "{error}"
            );
        }
        let body = json!({"repeat_penalty": 1.0, "seed": 3, "max_completion_tokens": 9,
            "chat_template_kwargs": {"model": "x"}});
        assert_eq!(check_extra_body(&fields(body)), Ok(()));
    }

    #[test]
    fn secrets_are_masked_at_any_depth() {
        let body = json!({
            "api_key": "hunter2", "X-Api-Key": "hunter2", "top_k": 3, "max_tokens": 5,
            "stop_token": "<end>", "key": null,
            "provider": {"Authorization": "Bearer hunter2", "order": ["a"],
                "routes": [{"openai_api_key": "hunter2", "azureApiKey": {"value": "hunter2"}}]},
        });
        let expected = json!({
            "api_key": "***", "X-Api-Key": "***", "top_k": 3, "max_tokens": 5,
            "stop_token": "<end>", "key": null,
            "provider": {"Authorization": "***", "order": ["a"],
                "routes": [{"openai_api_key": "***", "azureApiKey": "***"}]},
        });
        assert_eq!(without_secret_fields(&fields(body)), fields(expected));
    }
}
