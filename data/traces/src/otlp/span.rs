//! The conversation of one span.
//!
//! # Source
//!
//! - OpenTelemetry, "Semantic conventions for generative client AI spans" and "… events", and
//!   `gen-ai-input-messages.json`, `gen-ai-output-messages.json`, `gen-ai-tool-definitions.json`
//!   (semantic-conventions-genai 0.1); the events of version 1.36 and before
//! - OpenInference and OpenLLMetry, as in [`super::attributes`]
//!
//! All read on 2026-11-30.

use serde_json::{Map, Value, json};
use tooltune_template::conversation::Role;

use super::attributes::{indexed, structured};
use crate::chat;
use crate::counts::Counts;
use crate::source::TraceSource;
use crate::trace::{Problem, Trace, Turn};

const WRONG_MESSAGES: Problem = "the messages of a span are not a list";

/// An event with its fields.
pub(super) type Event = (String, Map<String, Value>);

/// The conversation of a span or log record; `None` if it has no messages.
pub(super) fn conversation(
    attributes: &Map<String, Value>,
    events: &[Event],
    location: &str,
    left_out: &mut Counts,
) -> Option<Trace> {
    let mut trace = Trace::new(TraceSource::Otlp, location);
    let list = |name: &str| attributes.get(name).map(structured);
    let (input, output) = (
        list("gen_ai.input.messages"),
        list("gen_ai.output.messages"),
    );
    if input.is_some() || output.is_some() {
        if let Some(instructions) = list("gen_ai.system_instructions") {
            add_instructions(&mut trace, &instructions);
        }
        add_messages(&mut trace, &input.unwrap_or_else(|| json!([])));
        add_choices(&mut trace, output.unwrap_or_else(|| json!([])), left_out);
    } else if !add_indexed(&mut trace, attributes, left_out)
        && !add_events(&mut trace, events, left_out)
    {
        return None;
    }
    trace.tools = tools(attributes);
    Some(trace)
}

fn add_instructions(trace: &mut Trace, instructions: &Value) {
    let message = json!({"parts": instructions});
    let parts = match instructions {
        Value::String(text) => Ok(vec![Turn::new(Role::System, Some(text.clone()))]),
        _ => chat::turns_of(message.as_object().unwrap_or(&Map::new()), Role::System),
    };
    let is_text = |turn: &Turn| turn.content.as_deref().is_some_and(|text| !text.is_empty());
    trace.push(parts.map(|turns| turns.into_iter().filter(is_text).collect()));
}

fn add_messages(trace: &mut Trace, messages: &Value) {
    match messages {
        Value::Array(messages) => {
            for message in messages {
                trace.push(chat::turns(message));
            }
        }
        _ => trace.push(Err(WRONG_MESSAGES)),
    }
}

/// Adds the first choice; the output of a span has one message per choice.
fn add_choices(trace: &mut Trace, choices: Value, left_out: &mut Counts) {
    let Value::Array(choices) = choices else {
        return trace.push(Err(WRONG_MESSAGES));
    };
    for _ in choices.iter().skip(1) {
        left_out.add(crate::chat::MORE_CHOICES, &trace.location);
    }
    if let Some(first) = choices.first() {
        let reason = first.get("finish_reason").and_then(Value::as_str);
        trace.push(match reason.is_some_and(chat::is_unfinished) {
            true => Err(chat::UNFINISHED),
            false => chat::turns(first),
        });
    }
}

/// Adds the messages of OpenInference or OpenLLMetry; whether there are any.
fn add_indexed(trace: &mut Trace, attributes: &Map<String, Value>, left_out: &mut Counts) -> bool {
    let layouts = [
        ("llm.input_messages", "llm.output_messages"),
        ("gen_ai.prompt", "gen_ai.completion"),
    ];
    for (input, output) in layouts {
        let input = indexed(attributes, input);
        if input.is_empty() {
            continue;
        }
        let choices = indexed(attributes, output).into_iter().map(plain_message);
        let messages = input.into_iter().map(plain_message).collect();
        add_messages(trace, &messages);
        add_choices(trace, choices.collect(), left_out);
        return true;
    }
    false
}

/// Removes OpenInference's inner objects: `message`, `tool_call` and `message_content`.
fn plain_message(message: Value) -> Value {
    let inner = |value: Value, name: &str| match value {
        Value::Object(mut fields) if fields.get(name).is_some_and(Value::is_object) => {
            fields.remove(name).unwrap_or_default()
        }
        other => other,
    };
    let items = |value: Value, name: &str| match value {
        Value::Array(items) => items.into_iter().map(|item| inner(item, name)).collect(),
        other => other,
    };
    let Value::Object(mut fields) = inner(message, "message") else {
        return Value::Null;
    };
    if let Some(calls) = fields.remove("tool_calls") {
        fields.insert("tool_calls".to_owned(), items(calls, "tool_call"));
    }
    if let Some(contents) = fields.remove("contents") {
        fields.insert("content".to_owned(), items(contents, "message_content"));
    }
    // OpenLLMetry stores lists of parts as strings.
    if let Some(content) = fields.get_mut("content") {
        let parts = structured(content);
        let is_part = |part: &Value| part.get("type").is_some_and(Value::is_string);
        if parts
            .as_array()
            .is_some_and(|all| !all.is_empty() && all.iter().all(is_part))
        {
            *content = parts;
        }
    }
    // A completion without a role is the model's.
    fields.entry("role").or_insert_with(|| "assistant".into());
    Value::Object(fields)
}

/// Adds the messages of events; whether there are any.
fn add_events(trace: &mut Trace, events: &[Event], left_out: &mut Counts) -> bool {
    let mut has_choice = false;
    let mut has_any = false;
    for (name, fields) in events {
        let body = event_body(fields);
        let role = match name.as_str() {
            "gen_ai.system.message" => Role::System,
            "gen_ai.user.message" => Role::User,
            "gen_ai.assistant.message" => Role::Assistant,
            "gen_ai.tool.message" => Role::Tool,
            "gen_ai.choice" if has_choice => {
                left_out.add(crate::chat::MORE_CHOICES, &trace.location);
                continue;
            }
            "gen_ai.choice" => {
                has_choice = true;
                Role::Assistant
            }
            "gen_ai.content.prompt" => {
                has_any = true;
                let prompt = fields.get("gen_ai.prompt").map(structured);
                add_messages(trace, &prompt.unwrap_or_default());
                continue;
            }
            "gen_ai.content.completion" => {
                has_any = true;
                let completion = fields.get("gen_ai.completion").map(structured);
                add_choices(trace, completion.unwrap_or_default(), left_out);
                continue;
            }
            _ => continue,
        };
        has_any = true;
        let reason = body.get("finish_reason").and_then(Value::as_str);
        if reason.is_some_and(chat::is_unfinished) {
            trace.push(Err(chat::UNFINISHED));
        }
        let message = match body.get("message").map(structured) {
            Some(Value::Object(message)) => message,
            Some(Value::String(content)) => {
                Map::from_iter([("content".to_owned(), Value::String(content))])
            }
            _ => body,
        };
        trace.push(chat::turns_of(&message, role));
    }
    has_any
}

/// The body of an event: its fields, and the fields of the JSON in `gen_ai.event.content`.
fn event_body(fields: &Map<String, Value>) -> Map<String, Value> {
    let mut body = fields.clone();
    if let Some(Value::Object(content)) = fields.get("gen_ai.event.content").map(structured) {
        body.extend(content);
    }
    if let Some(calls) = body.get_mut("tool_calls") {
        *calls = structured(calls);
    }
    body
}

fn tools(attributes: &Map<String, Value>) -> Vec<Value> {
    if let Some(Value::Array(tools)) = attributes.get("gen_ai.tool.definitions").map(structured) {
        let tools = tools.iter().map(structured);
        return tools.filter_map(|one| chat::tool(&one)).collect();
    }
    let functions = indexed(attributes, "llm.request.functions");
    let schemas = indexed(attributes, "llm.tools").into_iter();
    let schema = |tool: Value| {
        let schema = tool
            .pointer("/tool/json_schema")
            .or(tool.get("json_schema"));
        schema.map(structured)
    };
    let all = functions.into_iter().chain(schemas.filter_map(schema));
    all.filter_map(|one| chat::tool(&one)).collect()
}
