//! Reads one message of the APIs and of OpenTelemetry: roles, content parts, calls and results.
//!
//! # Source
//!
//! - OpenAI, API reference, "Create chat completion" and "Create a model response"
//! - Anthropic, API reference, "Create a Message"
//! - OpenTelemetry, `gen-ai-input-messages.json` and `gen-ai-output-messages.json`
//!
//! All read on 2026-11-30.

use serde_json::{Map, Value, json};
use tooltune_json::{Style, dumps};
use tooltune_template::conversation::Role;

use crate::trace::{Call, Problem, Turn, append};

pub(crate) const UNKNOWN_ROLE: Problem = "a message has an unknown role";
pub(crate) const NO_MESSAGE: Problem = "a message is not an object with a role";
pub(crate) const MEDIA: Problem = "a message has an image, audio or a file";
pub(crate) const UNKNOWN_PART: Problem = "a message has a part of an unknown type";
pub(crate) const WRONG_CONTENT: Problem = "a content is neither text nor a list of parts";
pub(crate) const NAMELESS_CALL: Problem = "a call has no name";

/// Counted for each choice that is left out.
pub(crate) const MORE_CHOICES: &str = "a choice of a response other than the first";

pub(crate) const UNFINISHED: Problem = "an answer is cut off by the token limit or a filter";

/// Whether the reason why an answer ended is not the model's.
pub(crate) fn is_unfinished(reason: &str) -> bool {
    matches!(
        reason,
        "length"
            | "max_tokens"
            | "max_output_tokens"
            | "content_filter"
            | "model_context_window_exceeded"
    )
}

/// The role of a name.
pub(crate) fn role(name: &str) -> Result<Role, Problem> {
    match name {
        "system" => Ok(Role::System),
        "developer" => Ok(Role::Developer),
        "user" | "human" => Ok(Role::User),
        "assistant" | "ai" | "model" => Ok(Role::Assistant),
        "tool" | "function" => Ok(Role::Tool),
        _ => Err(UNKNOWN_ROLE),
    }
}

/// Returns a string field that is not empty.
pub(crate) fn text(fields: &Map<String, Value>, names: &[&str]) -> Option<String> {
    let mut found = names.iter().filter_map(|name| fields.get(*name)?.as_str());
    found.find(|text| !text.is_empty()).map(str::to_owned)
}

/// The turns of one message. A message of Anthropic's API can have several results and a text.
pub(crate) fn turns(message: &Value) -> Result<Vec<Turn>, Problem> {
    let fields = message.as_object().ok_or(NO_MESSAGE)?;
    let role_name = fields.get("role").and_then(Value::as_str);
    turns_of(fields, role(role_name.ok_or(NO_MESSAGE)?)?)
}

/// Like [`turns`], with the role.
pub(crate) fn turns_of(fields: &Map<String, Value>, role: Role) -> Result<Vec<Turn>, Problem> {
    let mut parts = Parts {
        turn: Turn::new(role, None),
        results: Vec::new(),
    };
    let content = ["parts", "content"]
        .iter()
        .find_map(|name| fields.get(*name));
    match content.unwrap_or(&Value::Null) {
        Value::Null => {}
        Value::String(content) => parts.turn.content = Some(content.clone()),
        Value::Array(items) => {
            for item in items {
                parts.add(item)?;
            }
        }
        // A tool may return any JSON.
        other if role == Role::Tool => parts.turn.content = Some(as_text(other)),
        _ => return Err(WRONG_CONTENT),
    }
    let Parts { mut turn, results } = parts;
    if role == Role::Assistant {
        append(&mut turn.content, text(fields, &["refusal"]));
        append(
            &mut turn.reasoning,
            text(fields, &["reasoning_content", "reasoning", "thinking"]),
        );
        // LangChain repeats Anthropic's blocks in `tool_calls`.
        if let Some(Value::Array(calls)) = fields.get("tool_calls")
            && !calls.is_empty()
        {
            turn.calls = calls.iter().map(call).collect::<Result<_, _>>()?;
        }
        if let Some(old @ Value::Object(_)) = fields.get("function_call") {
            turn.calls.push(call(old)?);
        }
    }
    let mut turns = results;
    if role == Role::Tool {
        if turns.is_empty() {
            turn.call_id = text(fields, &["tool_call_id", "tool_use_id", "id"]);
            turn.name = text(fields, &["name"]);
            turn.content.get_or_insert_default();
            turns.push(turn);
        }
        return Ok(turns);
    }
    let is_only_results = turn.content.is_none() && turn.calls.is_empty() && !turns.is_empty();
    if !is_only_results {
        if role != Role::Assistant {
            turn.content.get_or_insert_default();
        }
        turns.push(turn);
    }
    Ok(turns)
}

/// A call in OpenAI's format, or with `name` and `arguments`, `args` or `input` in one object.
pub(crate) fn call(value: &Value) -> Result<Call, Problem> {
    let outer = value.as_object().ok_or(NAMELESS_CALL)?;
    let inner = match outer.get("function") {
        Some(Value::Object(function)) => function,
        _ => outer,
    };
    let mut arguments = ["arguments", "args", "input"]
        .iter()
        .filter_map(|name| inner.get(*name));
    Ok(Call {
        id: text(outer, &["id", "call_id", "tool_call_id"]),
        name: text(inner, &["name"]).ok_or(NAMELESS_CALL)?,
        arguments: arguments.next().cloned().unwrap_or(Value::Null),
    })
}

/// A result as text: strings unchanged, text parts joined, other values as JSON.
pub(crate) fn result_text(value: &Value) -> Result<String, Problem> {
    let Value::Array(items) = value else {
        return Ok(as_text(value));
    };
    let is_part = |item: &Value| item.get("type").is_some_and(Value::is_string);
    if items.is_empty() || !items.iter().all(is_part) {
        return Ok(as_text(value));
    }
    let mut parts = Parts {
        turn: Turn::new(Role::Tool, None),
        results: Vec::new(),
    };
    for item in items {
        match item["type"].as_str() {
            // Anthropic's tool search returns names of tools, and some servers whole resources.
            Some("text" | "input_text" | "output_text") => parts.add(item)?,
            Some(kind) if is_media(kind) => return Err(MEDIA),
            _ => append(&mut parts.turn.content, Some(as_text(item))),
        }
    }
    Ok(parts.turn.content.unwrap_or_default())
}

/// A value as text: a string unchanged, null as nothing, others as JSON.
pub(crate) fn as_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => dumps(other, Style::Python),
    }
}

/// A tool in OpenAI's format, from the formats of OpenAI, Anthropic, MCP and OpenTelemetry; `None`
/// for tools that the server runs.
pub(crate) fn tool(value: &Value) -> Option<Value> {
    let outer = value.as_object()?;
    if outer.get("function").is_some_and(Value::is_object) {
        return Some(json!({"type": "function", "function": outer["function"]}));
    }
    let kind = outer.get("type").and_then(Value::as_str);
    if !matches!(kind, None | Some("function" | "custom")) {
        return None;
    }
    let mut function = Map::new();
    function.insert("name".to_owned(), text(outer, &["name"])?.into());
    if let Some(description) = text(outer, &["description"]) {
        function.insert("description".to_owned(), description.into());
    }
    let schemas = ["parameters", "input_schema", "inputSchema"];
    let schema = schemas.iter().find_map(|name| outer.get(*name));
    match schema {
        // OpenLLMetry stores the schema as a string.
        Some(Value::String(schema)) => {
            let schema = tooltune_json::parse(schema).ok().filter(Value::is_object)?;
            function.insert("parameters".to_owned(), schema);
        }
        Some(schema @ Value::Object(_)) => {
            function.insert("parameters".to_owned(), schema.clone());
        }
        _ => {}
    }
    Some(json!({"type": "function", "function": function}))
}

fn is_media(kind: &str) -> bool {
    const MEDIA_WORDS: [&str; 7] = ["image", "audio", "video", "file", "document", "blob", "uri"];
    MEDIA_WORDS.iter().any(|word| kind.contains(word))
}

/// The parts of a message.
struct Parts {
    turn: Turn,
    results: Vec<Turn>,
}

impl Parts {
    fn add(&mut self, part: &Value) -> Result<(), Problem> {
        if let Value::String(content) = part {
            append(&mut self.turn.content, Some(content.clone()));
            return Ok(());
        }
        let fields = part.as_object().ok_or(UNKNOWN_PART)?;
        let kind = fields.get("type").and_then(Value::as_str);
        let content = |names: &[&str]| {
            let texts = names.iter().filter_map(|name| fields.get(*name)?.as_str());
            texts.map(str::to_owned).next()
        };
        match kind.ok_or(UNKNOWN_PART)? {
            "text" | "input_text" | "output_text" | "refusal" => {
                let content = content(&["text", "content", "refusal"]);
                append(&mut self.turn.content, Some(content.ok_or(UNKNOWN_PART)?));
            }
            "thinking" | "reasoning" => {
                let thought = content(&["thinking", "content", "text", "reasoning"]);
                append(
                    &mut self.turn.reasoning,
                    thought.filter(|one| !one.is_empty()),
                );
            }
            // Encrypted: there is nothing to train on.
            "redacted_thinking" => {}
            "tool_use" | "tool_call" | "function_call" => self.turn.calls.push(call(part)?),
            "tool_result" | "tool_call_response" | "function_call_output" => {
                let names = ["content", "response", "result", "output"];
                let value = names.iter().find_map(|name| fields.get(*name));
                let result = result_text(value.unwrap_or(&Value::Null))?;
                let id = text(fields, &["tool_use_id", "id", "call_id"]);
                self.results.push(Turn::result(id, None, result));
            }
            kind if is_media(kind) => return Err(MEDIA),
            _ => return Err(UNKNOWN_PART),
        }
        Ok(())
    }
}
