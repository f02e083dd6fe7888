//! JSON-RPC 2.0 messages as used by MCP: one message per line.

use serde_json::{Value, json};

use crate::http::excerpt;

/// The error code of an unknown method.
const METHOD_NOT_FOUND: i64 = -32601;

/// Maximum bytes of the ID in a request from the server, which is sent back.
const ID_BYTES: usize = 256;

/// A message from the server.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Message {
    /// The reply to one of our requests.
    Answer {
        /// The request's ID.
        id: u64,
        /// `result`, or code and message of `error`.
        result: Result<Value, (i64, String)>,
    },
    /// A request from the server.
    Request {
        /// The ID of the request, which the reply repeats.
        id: Value,
        /// The method.
        method: String,
    },
    /// A notification, or a reply to an unknown request.
    Other,
}

/// Parses a message; `None` if the value is not one.
pub(super) fn read(value: &Value) -> Option<Message> {
    let fields = value.as_object()?;
    if fields.get("jsonrpc")? != "2.0" {
        return None;
    }
    let id = fields.get("id");
    if let Some(method) = fields.get("method") {
        let method = method.as_str()?.to_owned();
        return Some(match id {
            Some(id) if id.to_string().len() > ID_BYTES => return None,
            Some(id) => Message::Request {
                id: id.clone(),
                method,
            },
            None => Message::Other,
        });
    }
    let result = match (fields.get("result"), fields.get("error")) {
        (Some(result), None) => Ok(result.clone()),
        (None, Some(error)) => {
            let code = error
                .get("code")
                .and_then(Value::as_i64)
                .unwrap_or_default();
            let text = error.get("message").and_then(Value::as_str);
            Err((code, text.unwrap_or_default().to_owned()))
        }
        _ => return None,
    };
    Some(match id.and_then(Value::as_u64) {
        Some(id) => Message::Answer { id, result },
        None => Message::Other,
    })
}

/// A request.
pub(super) fn request(id: u64, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// A notification.
pub(super) fn notification(method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "method": method, "params": params})
}

/// The reply to a request from the server: this client responds to pings and offers nothing else.
pub(super) fn answer_request(id: &Value, method: &str) -> Value {
    if method == "ping" {
        return json!({"jsonrpc": "2.0", "id": id, "result": {}});
    }
    let method = excerpt(method);
    let error = json!({"code": METHOD_NOT_FOUND, "message": format!("no method {method:?} here")});
    json!({"jsonrpc": "2.0", "id": id, "error": error})
}
