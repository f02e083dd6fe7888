//! JSON-RPC 2.0, as far as MCP uses it: one message a line.

use serde_json::{Value, json};

/// The code of a method that there is not.
const METHOD_NOT_FOUND: i64 = -32601;

/// What a line of the server is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Message {
    /// The answer to a request of ours.
    Answer {
        /// The request's number.
        id: u64,
        /// `result`, or code and text of `error`.
        result: Result<Value, (i64, String)>,
    },
    /// A request of the server's.
    Request {
        /// Its id, to be given back.
        id: Value,
        /// The method.
        method: String,
    },
    /// A notification, or an answer to what was never asked.
    Other,
}

/// Reads a message; nothing where the value is none.
pub(super) fn read(value: &Value) -> Option<Message> {
    let fields = value.as_object()?;
    if fields.get("jsonrpc")? != "2.0" {
        return None;
    }
    let id = fields.get("id");
    if let Some(method) = fields.get("method") {
        let method = method.as_str()?.to_owned();
        return Some(match id {
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

/// What this client answers to a request of the server's: that it is there, and offers nothing.
pub(super) fn answer(id: &Value, method: &str) -> Value {
    if method == "ping" {
        return json!({"jsonrpc": "2.0", "id": id, "result": {}});
    }
    let error = json!({"code": METHOD_NOT_FOUND, "message": format!("no method {method:?} here")});
    json!({"jsonrpc": "2.0", "id": id, "error": error})
}
