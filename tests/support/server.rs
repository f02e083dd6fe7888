//! A server on 127.0.0.1 for integration tests, and a minimal chat completion.

use serde_json::json;
pub(crate) use tooltune_endpoint::http::test_server::{Answer as Response, Received, TestServer};

/// A chat completion.
pub(crate) fn chat(text: &str) -> Response {
    let message = json!({"role": "assistant", "content": text});
    let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
    let completion = json!({"id": "1", "object": "chat.completion", "choices": [choice]});
    Response::json(200, &completion)
}
