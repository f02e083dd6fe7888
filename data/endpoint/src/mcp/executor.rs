//! Calls answered by the tools of an MCP server.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::{Map, Value, json};
use tooltune_agents::executors::{CallResult, Executor};
use tooltune_rows::json;
use tooltune_rows::tools::ApiCatalogue;

use super::client::{McpClient, McpOptions};
use super::error::McpError;
use crate::api::fitted_arguments;
use crate::http::excerpt;

/// Sends each call to a server, which runs as long as this lives.
#[derive(Debug)]
pub struct McpExecutor {
    options: McpOptions,
    stop: Arc<AtomicBool>,
    catalogue: ApiCatalogue,
    client: McpClient,
}

impl McpExecutor {
    /// Starts a server and asks for its tools; waits end at once when `stop` is set.
    ///
    /// # Errors
    ///
    /// - those of [`McpClient::start`] and [`McpClient::tools`]
    /// - two tools have one name
    pub fn start(options: &McpOptions, stop: Arc<AtomicBool>) -> Result<Self, McpError> {
        let mut client = McpClient::start(options, Arc::clone(&stop))?;
        let catalogue = ApiCatalogue::new(client.tools()?.documents)?;
        Ok(Self {
            options: options.clone(),
            stop,
            catalogue,
            client,
        })
    }

    /// The documents of the tools, in the order of the server.
    pub fn catalogue(&self) -> &ApiCatalogue {
        &self.catalogue
    }

    fn answer(
        &mut self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<CallResult, CallResult> {
        let unknown = || {
            let hint = self.catalogue.hint(name);
            CallResult::failure(format!("unknown tool {name:?}{hint}"))
        };
        let document = self.catalogue.get(name).ok_or_else(unknown)?;
        let arguments =
            fitted_arguments(document, arguments, &|_| false).map_err(CallResult::failure)?;
        let failed = |error: McpError| {
            let said = format!("{name}: {error}");
            match error {
                // The server's own word about the call.
                McpError::Refused { .. } => CallResult::failure(said),
                _ => CallResult::unanswered(said),
            }
        };
        if self.client.has_ended() {
            self.client =
                McpClient::start(&self.options, Arc::clone(&self.stop)).map_err(failed)?;
        }
        let result = self.client.call(name, &arguments).map_err(failed)?;
        Ok(read_result(name, &result))
    }
}

impl Executor for McpExecutor {
    fn call(&mut self, name: &str, arguments: &Map<String, Value>) -> CallResult {
        self.answer(name.trim(), arguments)
            .unwrap_or_else(|failure| failure)
    }
}

/// `structuredContent` where there is some, else what the blocks of `content` say.
fn read_result(name: &str, result: &Value) -> CallResult {
    let structured = result
        .get("structuredContent")
        .filter(|value| !value.is_null());
    let content = result.get("content").and_then(Value::as_array);
    if structured.is_none() && content.is_none() {
        return CallResult::failure(format!("{name} was answered without content"));
    }
    let blocks: Vec<Value> = content.into_iter().flatten().map(shown_block).collect();
    let said = blocks.iter().map(|block| match block {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    let said: Vec<String> = said.collect();
    let output = match (structured, blocks.as_slice()) {
        (Some(structured), _) => structured.clone(),
        (None, []) => Value::Null,
        // A text is JSON from servers that answer with data, and words from others.
        (None, [Value::String(text)]) => json::parse(text).unwrap_or_else(|_| text.clone().into()),
        (None, blocks) => Value::Array(blocks.to_vec()),
    };
    let is_error = result.get("isError") == Some(&Value::Bool(true));
    let exception = is_error.then(|| format!("{name} failed: {}", excerpt(&said.join(" "))));
    CallResult::of(output, exception)
}

/// A text, or another block with the length of its data in the place of these.
fn shown_block(block: &Value) -> Value {
    if block.get("type").is_some_and(|kind| kind == "text")
        && let Some(text @ Value::String(_)) = block.get("text")
    {
        return text.clone();
    }
    let mut shown = block.clone();
    let hold_data = ["/data", "/resource/blob"];
    for place in hold_data {
        if let Some(data) = shown.pointer_mut(place)
            && let Some(text) = data.as_str()
        {
            *data = json!(format!("({} characters of base64)", text.len()));
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_its_structure_or_its_texts() {
        let text = |text: &str| json!({"type": "text", "text": text});
        for (result, output) in [
            (json!({"content": [text("{\"a\": 1}")]}), json!({"a": 1})),
            (json!({"content": [text("noon")]}), json!("noon")),
            (
                json!({"content": [text("a"), text("b")]}),
                json!(["a", "b"]),
            ),
            (json!({"content": []}), json!(null)),
            (
                json!({"content": [text("x")], "structuredContent": {"b": 2}}),
                json!({"b": 2}),
            ),
            (
                json!({"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}),
                json!([{"type": "image", "data": "(4 characters of base64)", "mimeType": "image/png"}]),
            ),
        ] {
            assert_eq!(read_result("t", &result), CallResult::success(output));
        }
        let failed = read_result(
            "t",
            &json!({"content": [text("no such city")], "isError": true}),
        );
        assert_eq!(failed.exception.as_deref(), Some("t failed: no such city"));
        assert_eq!(failed.output, "no such city");
        assert!(read_result("t", &json!({})).is_failure());
    }
}
