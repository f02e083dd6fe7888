//! A chat completion server for tests, which validates requests and replies depending on their
//! content.

use serde_json::{Value, json};

use super::options::EndpointOptions;
use crate::http::test_server::{Answer, Received, TestServer};

/// The served model's name.
pub const MODEL: &str = "tiny-chat";
/// The required key.
pub const KEY: &str = "sk-0123456789abcdef";

/// An environment that contains the key.
pub fn environment(name: &str) -> Option<String> {
    (name == "CHAT_KEY").then(|| KEY.to_owned())
}

/// Starts a server. `answer` receives the request's JSON and its index, from 0.
pub fn chat_server(answer: impl Fn(&Value, usize) -> Answer + Send + Sync + 'static) -> TestServer {
    TestServer::start(move |received, number| match check_request(received) {
        Ok(request) => answer(&request, number),
        Err((status, reason)) => Answer::json(status, &json!({"error": {"message": reason}})),
    })
}

/// Test options: short waits, and timeouts that even a busy machine does not reach.
pub fn options(server_url: &str) -> EndpointOptions {
    EndpointOptions {
        api_key_env: Some("CHAT_KEY".to_owned()),
        timeout_secs: 40.0,
        total_secs: 50.0,
        retries: 3,
        first_wait_secs: 0.01,
        max_wait_secs: 0.05,
        max_body_bytes: 10_000,
        ..EndpointOptions::new(format!("{server_url}/v1/"), MODEL)
    }
}

/// A completion in the protocol's format.
pub fn completion(text: &str) -> Answer {
    let message = json!({"role": "assistant", "content": text});
    Answer::json(
        200,
        &json!({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }),
    )
}

/// The content of a request's last message.
pub fn last_content(request: &Value) -> &str {
    let messages = request["messages"].as_array().expect("checked");
    messages
        .last()
        .and_then(|last| last["content"].as_str())
        .expect("checked")
}

fn check_request(received: &Received) -> Result<Value, (u16, String)> {
    let header = |name: &str| received.headers.get(name).map(String::as_str);
    if (received.method.as_str(), received.target.as_str()) != ("POST", "/v1/chat/completions") {
        return Err((404, format!("no {} {}", received.method, received.target)));
    }
    if header("authorization") != Some(&format!("Bearer {KEY}")) {
        let key = header("authorization").unwrap_or("none");
        return Err((401, format!("Incorrect API key provided: {key}")));
    }
    if header("content-type") != Some("application/json") {
        return Err((415, "not JSON".to_owned()));
    }
    let request: Value =
        serde_json::from_str(&received.body).map_err(|error| (400, error.to_string()))?;
    if request["model"] != MODEL {
        return Err((
            404,
            format!("The model {} does not exist", request["model"]),
        ));
    }
    let messages = request["messages"].as_array();
    let is_message = |message: &Value| {
        let role = message["role"].as_str();
        role.is_some_and(|role| ["system", "user", "assistant"].contains(&role))
            && message["content"].is_string()
    };
    match messages {
        Some(messages) if !messages.is_empty() && messages.iter().all(is_message) => Ok(request),
        _ => Err((400, "messages must be a list of messages".to_owned())),
    }
}
