//! Executes calls with the tools of an MCP server.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::{Map, Value, json};
use tooltune_agents::executors::{CallResult, Executor};
use tooltune_apis::ApiCatalogue;
use tooltune_json as json;

use super::client::{McpClient, McpOptions};
use super::error::McpError;
use crate::api::fit_arguments;
use crate::border;
use crate::http::excerpt;

/// Allows every tool.
const EVERY_TOOL: &str = "*";

/// Sends each call to a server, which runs while this value lives.
#[derive(Debug)]
pub struct McpExecutor {
    options: McpOptions,
    stop: Arc<AtomicBool>,
    catalogue: ApiCatalogue,
    /// The read-only tools, and the tools allowed by name.
    allowed: BTreeSet<String>,
    client: McpClient,
}

impl McpExecutor {
    /// Starts a server and lists its tools. Waits end at once when `stop` is set.
    ///
    /// # Errors
    ///
    /// - [`McpClient::start`] or [`McpClient::tools`] fails.
    /// - Two tools have the same name.
    /// - An allowed tool does not exist.
    pub fn start(options: &McpOptions, stop: Arc<AtomicBool>) -> Result<Self, McpError> {
        Self::with_client(McpClient::start(options, Arc::clone(&stop))?, options, stop)
    }

    pub(super) fn with_client(
        mut client: McpClient,
        options: &McpOptions,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, McpError> {
        let tools = client.tools()?;
        let catalogue = ApiCatalogue::new(tools.apis.documents)?;
        let mut allowed = tools.read_only;
        for name in &options.allow_tools {
            if name != EVERY_TOOL && catalogue.get(name).is_none() {
                return Err(McpError::UnknownTool {
                    name: name.clone(),
                    hint: catalogue.hint(name),
                });
            }
            allowed.insert(name.clone());
        }
        Ok(Self {
            options: options.clone(),
            stop,
            catalogue,
            allowed,
            client,
        })
    }

    /// The documents of the tools, in the server's order.
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
        if let Some(reason) = self.refusal(name) {
            return Err(CallResult::failure(reason));
        }
        let arguments =
            fit_arguments(document, arguments, &|_| false).map_err(CallResult::failure)?;
        let failed = |error: McpError| {
            let message = format!("{name}: {error}");
            match error {
                // Faults of the call itself, as reported by the server.
                McpError::Refused { .. } | McpError::TooLarge { .. } => {
                    CallResult::failure(message)
                }
                _ => CallResult::unanswered(message),
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
    fn refusal(&self, name: &str) -> Option<String> {
        let name = self.catalogue.get(name.trim())?.call_name();
        if self.allowed.contains(&name) || self.allowed.contains(EVERY_TOOL) {
            return None;
        }
        Some(format!(
            "{name}: the tool is not called, because the server does not declare it read-only \
             (annotations.readOnlyHint); allow it with goat.executor.allow_tools = [{name:?}], or \
             with --allow-tool {name} in `data goat` and `chat`"
        ))
    }

    fn call(&mut self, name: &str, arguments: &Map<String, Value>) -> CallResult {
        let result = self.answer(name.trim(), arguments);
        let result = result.unwrap_or_else(|failure| failure);
        // A string in a result may itself be JSON, which hides a secret until it is decoded.
        border::without_secrets(self.client.redactor(), result)
    }
}

/// `structuredContent` if present, otherwise the contents of the `content` blocks.
fn read_result(name: &str, result: &Value) -> CallResult {
    let structured = result
        .get("structuredContent")
        .filter(|value| !value.is_null());
    let content = result.get("content").and_then(Value::as_array);
    if structured.is_none() && content.is_none() {
        return CallResult::failure(format!("{name} was answered without content"));
    }
    let blocks: Vec<Value> = content.into_iter().flatten().map(block_to_show).collect();
    let texts = blocks.iter().map(|block| match block {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    let texts: Vec<String> = texts.collect();
    let output = match (structured, blocks.as_slice()) {
        (Some(structured), _) => structured.clone(),
        (None, []) => Value::Null,
        // Some servers return data as JSON strings, others plain text.
        (None, [Value::String(text)]) => json::parse(text).unwrap_or_else(|_| text.clone().into()),
        (None, blocks) => Value::Array(blocks.to_vec()),
    };
    let is_error = result.get("isError") == Some(&Value::Bool(true));
    let exception = is_error.then(|| format!("{name} failed: {}", excerpt(&texts.join(" "))));
    CallResult::new(output, exception)
}

/// A text block's string, or another block with the length of its data in place of the data.
fn block_to_show(block: &Value) -> Value {
    if block.get("type").is_some_and(|kind| kind == "text")
        && let Some(text @ Value::String(_)) = block.get("text")
    {
        return text.clone();
    }
    let mut text_block = block.clone();
    let hold_data = ["/data", "/resource/blob"];
    for pointer in hold_data {
        if let Some(data) = text_block.pointer_mut(pointer)
            && let Some(text) = data.as_str()
        {
            *data = json!(format!("({} characters of base64)", text.len()));
        }
    }
    text_block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_its_structured_content_or_its_text_blocks() {
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
