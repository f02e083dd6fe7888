//! Rollout files of the Codex CLI, and items of OpenAI's Responses API, which they consist of.
//!
//! A line is `{"timestamp", "type", "payload"}`; the oldest files have the payloads themselves as
//! lines. Only `response_item` lines are messages: `event_msg` repeats them for the display.
//! `session_meta` has the instructions. After `compacted`, the history is `replacement_history`,
//! so a new conversation begins.
//!
//! # Source
//!
//! - `openai/codex`, `codex-rs/protocol/src/models.rs` (`ResponseItem`) and `protocol.rs`
//!   (`RolloutItem`, `SessionMeta`, `CompactedItem`)
//! - OpenAI, API reference, "Create a model response", `output`
//!
//! Read on 2026-11-30.

use serde_json::{Map, Value, json};
use tooltune_template::conversation::Role;

use crate::chat::{self, result_text, text};
use crate::counts::Counts;
use crate::source::TraceSource;
use crate::trace::{Call, Problem, Trace, Turn};

const SERVER_CALL: Problem = "an item is a call that the server runs";
const LOST_HISTORY: Problem = "the session is compacted, without the new history";

/// Types of lines with a payload.
const LINES: [&str; 6] = [
    "session_meta",
    "response_item",
    "event_msg",
    "turn_context",
    "compacted",
    "world_state",
];

/// Types of lines that are payloads.
const ITEMS: [&str; 6] = [
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "local_shell_call",
    "reasoning",
];

/// Whether an entry has this layout.
pub(crate) fn is_known(fields: &Map<String, Value>) -> bool {
    let kind = fields
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    match kind {
        "message" => fields.get("content").is_some_and(has_item_parts),
        kind if LINES.contains(&kind) => fields.contains_key("payload"),
        kind => ITEMS.contains(&kind),
    }
}

fn has_item_parts(content: &Value) -> bool {
    let first = content.get(0).and_then(|part| part.get("type"));
    matches!(
        first.and_then(Value::as_str),
        Some("input_text" | "output_text")
    )
}

/// A session while it is read.
#[derive(Default)]
pub(crate) struct Session {
    trace: Option<Trace>,
    instructions: Option<String>,
    outcome: Option<f64>,
}

impl Session {
    /// Adds a line; returns a conversation that ends here.
    pub(crate) fn add(
        &mut self,
        entry: &Value,
        location: &str,
        left_out: &mut Counts,
    ) -> Option<Trace> {
        let fields = entry.as_object()?;
        let kind = fields
            .get("type")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let payload = fields.get("payload").unwrap_or(entry);
        match kind {
            "session_meta" => {
                let instructions = payload
                    .get("base_instructions")
                    .and_then(|one| one.get("text"));
                let instructions = instructions.or(payload.get("instructions"));
                self.instructions = instructions.and_then(Value::as_str).map(str::to_owned);
                None
            }
            "compacted" => {
                let ended = self.end();
                let history = payload.get("replacement_history").and_then(Value::as_array);
                for item in history.into_iter().flatten() {
                    add_item(self.trace(location), item, left_out);
                }
                if history.is_none() {
                    self.trace(location).push(Err(LOST_HISTORY));
                }
                ended
            }
            "event_msg" | "turn_context" | "world_state" => None,
            _ => {
                let trace = self.trace(location);
                location.clone_into(&mut trace.location);
                add_item(trace, payload, left_out);
                None
            }
        }
    }

    /// Sets the outcome of the session.
    pub(crate) fn set_outcome(&mut self, outcome: f64) {
        self.outcome = Some(outcome);
    }

    /// The conversation so far.
    pub(crate) fn end(&mut self) -> Option<Trace> {
        let mut trace = self.trace.take()?;
        trace.outcome = self.outcome;
        Some(trace)
    }

    fn trace(&mut self, location: &str) -> &mut Trace {
        let instructions = self.instructions.as_ref();
        self.trace.get_or_insert_with(|| {
            let mut trace = Trace::new(TraceSource::Codex, location);
            let system = instructions.map(|text| Turn::new(Role::System, Some(text.clone())));
            trace.turns.extend(system);
            trace
        })
    }
}

/// Adds an item of the Responses API to a conversation.
pub(crate) fn add_item(trace: &mut Trace, item: &Value, left_out: &mut Counts) {
    let none = Map::new();
    let fields = item.as_object().unwrap_or(&none);
    let kind = fields
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or("message");
    let id = text(fields, &["call_id", "id"]);
    let mut call = |name: Option<String>, arguments: Value| match name {
        Some(name) => {
            let mut answer = Turn::new(Role::Assistant, None);
            answer.calls.push(Call {
                id: id.clone(),
                name,
                arguments,
            });
            trace.push_answer_part(answer);
        }
        None => trace.push(Err(chat::NAMELESS_CALL)),
    };
    match kind {
        "message" => match chat::turns(item) {
            Ok(turns) => {
                for turn in turns {
                    match turn.role {
                        Role::Assistant => trace.push_answer_part(turn),
                        _ => trace.push(Ok(vec![turn])),
                    }
                }
            }
            Err(problem) => trace.push(Err(problem)),
        },
        "function_call" => {
            let arguments = fields.get("arguments").cloned().unwrap_or_default();
            call(text(fields, &["name"]), arguments);
        }
        "custom_tool_call" => {
            let input = fields.get("input").cloned().unwrap_or_default();
            call(text(fields, &["name"]), json!({"input": input}));
        }
        "local_shell_call" => {
            let mut action = fields.get("action").cloned().unwrap_or_default();
            if let Some(action) = action.as_object_mut() {
                action.retain(|name, value| name != "type" && !value.is_null());
            }
            call(Some("local_shell".to_owned()), action);
        }
        "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" => {
            let output = fields.get("output").unwrap_or(&Value::Null);
            // Some versions write {"content", "success"}.
            let output = output
                .get("content")
                .filter(|_| output.is_object())
                .unwrap_or(output);
            let result = result_text(output).map(|content| vec![Turn::result(id, None, content)]);
            trace.push(result);
        }
        "reasoning" => {
            let mut thought = Turn::new(Role::Assistant, None);
            thought.reasoning = reasoning(fields);
            // Encrypted reasoning has no text.
            if thought.reasoning.is_some() {
                trace.push_answer_part(thought);
            }
        }
        "web_search_call"
        | "file_search_call"
        | "code_interpreter_call"
        | "mcp_call"
        | "image_generation_call"
        | "computer_call" => trace.push(Err(SERVER_CALL)),
        kind => left_out.add(
            format!("an item of the type {}", excerpt(kind)),
            &trace.location,
        ),
    }
}

/// The text of reasoning, or its summary.
fn reasoning(fields: &Map<String, Value>) -> Option<String> {
    let texts = |name: &str| {
        let parts = fields.get(name)?.as_array()?.iter();
        let texts: Vec<&str> = parts
            .filter_map(|part| part.get("text")?.as_str())
            .collect();
        Some(texts.join("\n")).filter(|text| !text.is_empty())
    };
    texts("content").or_else(|| texts("summary"))
}

/// A name from a file for a message, at most 40 characters.
pub(crate) fn excerpt(name: &str) -> String {
    format!("{:?}", name.chars().take(40).collect::<String>())
}
