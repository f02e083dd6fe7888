//! Messages in the protocol's format.

use serde_json::{Map, Value, json};
use tooltune_json as json;
use tooltune_template::Message;

use super::options::ChatOptions;

/// The body of a request.
pub(super) fn chat_request(model: &str, messages: &[Message], options: &ChatOptions) -> Value {
    let mut body = options.extra.clone();
    body.insert("model".to_owned(), Value::from(model));
    let messages: Vec<Value> = messages.iter().map(message_json).collect();
    body.insert("messages".to_owned(), Value::from(messages));
    let format = options.response_format.clone();
    for (name, value) in [
        ("temperature", options.temperature.map(Value::from)),
        ("max_tokens", options.max_tokens.map(Value::from)),
        ("response_format", format),
    ] {
        if let Some(value) = value {
            body.insert(name.to_owned(), value);
        }
    }
    Value::Object(body)
}

fn message_json(message: &Message) -> Value {
    let mut fields = Map::new();
    fields.insert("role".to_owned(), Value::from(message.role.as_str()));
    fields.insert("content".to_owned(), Value::from(message.content.clone()));
    let call = |(idx, call): (usize, &tooltune_template::ToolCall)| {
        let id = call.id.clone().unwrap_or_else(|| format!("call_{idx}"));
        // The protocol passes arguments as a string.
        let arguments = json::dumps(&Value::Object(call.arguments.clone()), json::Style::Python);
        let function = json!({"name": call.name, "arguments": arguments});
        json!({"id": id, "type": "function", "function": function})
    };
    if !message.tool_calls.is_empty() {
        let calls: Vec<Value> = message.tool_calls.iter().enumerate().map(call).collect();
        fields.insert("tool_calls".to_owned(), Value::from(calls));
    }
    for (name, value) in &message.extra {
        fields.entry(name.clone()).or_insert_with(|| value.clone());
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use tooltune_template::{Role, ToolCall};

    use super::*;

    #[test]
    fn a_request_has_the_protocols_format() {
        let mut call = Message::new(Role::Assistant, "");
        call.content = None;
        call.tool_calls = vec![ToolCall {
            id: None,
            name: "add".to_owned(),
            arguments: Map::from_iter([("a".to_owned(), json!("ü"))]),
            derived: Default::default(),
        }];
        let mut result = Message::new(Role::Tool, "3");
        result
            .extra
            .insert("tool_call_id".to_owned(), json!("call_0"));
        result.extra.insert("role".to_owned(), json!("never"));
        let options = ChatOptions {
            temperature: Some(0.0),
            max_tokens: Some(9),
            response_format: Some(json!({"type": "json_object"})),
            extra: Map::from_iter([
                ("seed".to_owned(), json!(1)),
                ("model".to_owned(), json!("x")),
            ]),
        };
        let messages = [Message::new(Role::User, "1+2?"), call, result];
        assert_eq!(
            chat_request("m", &messages, &options),
            json!({
                "seed": 1, "model": "m", "temperature": 0.0, "max_tokens": 9,
                "response_format": {"type": "json_object"},
                "messages": [
                    {"role": "user", "content": "1+2?"},
                    {"role": "assistant", "content": null, "tool_calls": [{
                        "id": "call_0", "type": "function",
                        "function": {"name": "add", "arguments": "{\"a\": \"ü\"}"},
                    }]},
                    {"role": "tool", "content": "3", "tool_call_id": "call_0"},
                ],
            })
        );
        let minimal = chat_request("m", &[], &ChatOptions::default());
        assert_eq!(minimal, json!({"model": "m", "messages": []}));
    }
}
