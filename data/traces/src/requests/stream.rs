//! Joins the chunks of a streamed response.
//!
//! # Source
//!
//! OpenAI, API reference, "The chat completion chunk object" and "Streaming events"; Anthropic, API
//! reference, "Streaming Messages". Read on 2026-11-30.

use serde_json::{Map, Value, json};

/// Maximum index of a call or block; a larger one is ignored.
const MAX_INDEX: usize = 10_000;

/// The object of a chunk of a chat completion.
const CHUNK: &str = "chat.completion.chunk";

/// Whether a response is one chunk.
pub(super) fn is_chunk(response: &Value) -> bool {
    response.get("object").and_then(Value::as_str) == Some(CHUNK)
}

/// The events of a stream that was logged as text; `None` if the text is not a stream.
pub(super) fn events_of_text(text: &str) -> Option<Vec<Value>> {
    let events: Vec<Value> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data:"))
        .filter_map(|data| tooltune_json::parse(data.trim()).ok())
        .collect();
    (!events.is_empty()).then_some(events)
}

/// Joins chunks or events; `None` if they are of neither API.
pub(super) fn join(events: &[Value]) -> Option<Value> {
    let kind = |event: &Value| event.get("type").and_then(Value::as_str).map(str::to_owned);
    if let Some(done) = events.iter().find(|event| {
        matches!(
            kind(event).as_deref(),
            Some("response.completed" | "response.incomplete")
        )
    }) {
        return done.get("response").cloned();
    }
    let first = events.first()?;
    if kind(first).as_deref() == Some("message_start") {
        return Some(join_blocks(events));
    }
    first.get("choices")?;
    let mut chunks = Chunks::default();
    for event in events {
        chunks.add(event);
    }
    Some(chunks.into_response())
}

/// The chunks of one chat completion; only the first choice.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    content: Option<String>,
    reasoning: Option<String>,
    calls: Vec<(String, String, String)>,
    finish_reason: Option<String>,
}

impl Chunks {
    pub(super) fn add(&mut self, chunk: &Value) {
        let choices = chunk.get("choices").and_then(Value::as_array);
        let is_first =
            |choice: &&Value| choice.get("index").and_then(Value::as_u64).unwrap_or(0) == 0;
        let Some(choice) = choices.and_then(|choices| choices.iter().find(is_first)) else {
            return;
        };
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            self.finish_reason = Some(reason.to_owned());
        }
        let Some(delta) = choice.get("delta") else {
            return;
        };
        let text = |name: &str| delta.get(name).and_then(Value::as_str);
        for (joined, part) in [
            (&mut self.content, text("content")),
            (
                &mut self.reasoning,
                text("reasoning_content").or(text("reasoning")),
            ),
        ] {
            if let Some(part) = part {
                joined.get_or_insert_default().push_str(part);
            }
        }
        for call in delta
            .get("tool_calls")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            self.add_call(call);
        }
    }

    fn add_call(&mut self, call: &Value) {
        let idx = call.get("index").and_then(Value::as_u64).unwrap_or(0);
        let Some(idx) = usize::try_from(idx).ok().filter(|&idx| idx < MAX_INDEX) else {
            return;
        };
        if self.calls.len() <= idx {
            self.calls.resize_with(idx + 1, Default::default);
        }
        let (id, name, arguments) = &mut self.calls[idx];
        for (joined, part) in [
            (id, call.get("id")),
            (name, call.pointer("/function/name")),
            (arguments, call.pointer("/function/arguments")),
        ] {
            joined.push_str(part.and_then(Value::as_str).unwrap_or_default());
        }
    }

    /// The response as if it had not been streamed.
    pub(super) fn into_response(self) -> Value {
        let call = |(id, name, arguments): (String, String, String)| json!({"id": id, "function": {"name": name, "arguments": arguments}});
        let calls: Vec<Value> = self.calls.into_iter().map(call).collect();
        json!({"choices": [{
            "message": {
                "role": "assistant",
                "content": self.content,
                "reasoning_content": self.reasoning,
                "tool_calls": calls,
            },
            "finish_reason": self.finish_reason,
        }]})
    }
}

/// Joins the events of Anthropic's API.
fn join_blocks(events: &[Value]) -> Value {
    let mut blocks: Vec<Map<String, Value>> = Vec::new();
    let mut inputs: Vec<String> = Vec::new();
    let mut stop_reason = Value::Null;
    for event in events {
        let idx = event.get("index").and_then(Value::as_u64).unwrap_or(0);
        let idx = usize::try_from(idx).unwrap_or(MAX_INDEX);
        match event.get("type").and_then(Value::as_str) {
            Some("content_block_start") if idx == blocks.len() && idx < MAX_INDEX => {
                let block = event.get("content_block").and_then(Value::as_object);
                blocks.push(block.cloned().unwrap_or_default());
                inputs.push(String::new());
            }
            Some("content_block_delta") if idx < blocks.len() => {
                let delta = |name: &str| event.get("delta")?.get(name)?.as_str();
                for name in ["text", "thinking"] {
                    if let Some(part) = delta(name)
                        && let Value::String(joined) =
                            blocks[idx].entry(name).or_insert_with(|| "".into())
                    {
                        joined.push_str(part);
                    }
                }
                inputs[idx].push_str(delta("partial_json").unwrap_or_default());
            }
            Some("message_delta") => {
                stop_reason = event
                    .pointer("/delta/stop_reason")
                    .cloned()
                    .unwrap_or_default();
            }
            _ => {}
        }
    }
    for (block, input) in blocks.iter_mut().zip(inputs) {
        if !input.is_empty() {
            block.insert("input".to_owned(), input.into());
        }
    }
    json!({"type": "message", "role": "assistant", "content": blocks, "stop_reason": stop_reason})
}
