//! Logs of requests to chat APIs. The entry has the request and the response:
//!
//! - `{"request": …, "response": …}`; both also as JSON strings, or within `body`
//! - one object with `messages` and `choices`, or only `messages` that end in an answer
//! - the two files of OpenAI's batch API, joined by `custom_id`
//! - `{"object": "list", "data": […]}`, a page of stored completions with `messages`
//! - streamed chunks: a list or the text of the stream in `response`, or lines with one chunk each,
//!   joined by its `id`
//!
//! The request is one of OpenAI's chat completions (`messages`), of its Responses API (`input`), or
//! of Anthropic's messages (`messages`, `system`, `input_schema`).
//!
//! An answer that the token limit or a filter has ended cannot be trained on, because the model
//! would learn to stop there.
//!
//! # Source
//!
//! OpenAI, API reference, "Chat completions", "Responses", "Batch"; Anthropic, API reference,
//! "Create a Message". Read on 2026-11-30.

mod stream;

use std::collections::HashMap;

use serde_json::{Map, Value};
use tooltune_template::conversation::Role;

use crate::budgets::TRACE_BYTES;
use crate::chat;
use crate::codex::add_item;
use crate::counts::Counts;
use crate::error::TraceError;
use crate::outcome::OutcomeRule;
use crate::source::TraceSource;
use crate::trace::{Problem, Trace, Turn, value_bytes};
use stream::{Chunks, events_of_text, is_chunk, join};

const NO_REQUEST: Problem = "a response without its request";
const NO_RESPONSE: Problem = "a request without its response";
const NO_MESSAGES: Problem = "a request without messages";
const FAILED: Problem = "the response is an error";
const UNKNOWN_RESPONSE: Problem = "the response has an unknown layout";

/// Whether an entry has this layout.
pub(crate) fn is_known(fields: &Map<String, Value>) -> bool {
    let has = |name: &str| fields.contains_key(name);
    let is_list = |name: &str| fields.get(name).is_some_and(Value::is_array);
    is_list("messages")
        || is_list("choices")
        || has("request") && (has("response") || has("error"))
        || has("custom_id") && (has("body") || has("response"))
        || is_list("data") && has("object")
        // A list of messages.
        || has("role") && (has("content") || has("tool_calls"))
}

/// Whether an entry is one message of a list.
pub(crate) fn is_message(entry: &Value) -> bool {
    let others = ["messages", "choices", "request", "response"];
    entry.get("role").is_some() && others.iter().all(|name| entry.get(*name).is_none())
}

/// An entry as a request and a response, of which one can be missing.
#[derive(Default)]
struct Exchange {
    location: String,
    request: Option<Value>,
    response: Option<Value>,
    outcome: Option<f64>,
}

/// The entries that wait for others.
#[derive(Default)]
pub(crate) struct Requests {
    /// Halves of a batch, by `custom_id`.
    halves: Waiting<Exchange>,
    /// Streamed responses, by the id of their chunks.
    streams: Waiting<(Exchange, Chunks)>,
    n_bytes: usize,
}

/// Values by key, in the order of their insertion.
struct Waiting<T> {
    values: Vec<Option<T>>,
    positions: HashMap<String, usize>,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            positions: HashMap::new(),
        }
    }
}

impl<T> Waiting<T> {
    fn get_or_insert(&mut self, key: &str, value: impl FnOnce() -> T) -> Option<&mut T> {
        let idx = match self.positions.get(key) {
            Some(&idx) => idx,
            None => {
                self.positions.insert(key.to_owned(), self.values.len());
                self.values.push(Some(value()));
                self.values.len() - 1
            }
        };
        self.values[idx].as_mut()
    }

    fn remove(&mut self, key: &str) -> Option<T> {
        let idx = self.positions.remove(key)?;
        self.values[idx].take()
    }

    fn into_values(self) -> impl Iterator<Item = T> {
        self.values.into_iter().flatten()
    }
}

impl Requests {
    /// Adds an entry, and returns the conversations that are complete.
    ///
    /// # Errors
    ///
    /// - the waiting entries exceed their limit
    pub(crate) fn add(
        &mut self,
        entry: &Value,
        location: &str,
        rule: &OutcomeRule,
        report: &mut Drops<'_>,
    ) -> Result<Vec<Trace>, TraceError> {
        let mut complete = Vec::new();
        let listed = entry.get("data").filter(|_| entry.get("object").is_some());
        let items: Vec<&Value> = match listed {
            Some(Value::Array(items)) => items.iter().collect(),
            _ => vec![entry],
        };
        for item in items {
            let exchange = Exchange::read(item, location, rule);
            if let Some(exchange) = self.match_halves(item, exchange)? {
                complete.extend(exchange.into_trace(report));
            }
        }
        Ok(complete)
    }

    /// Returns the exchange if it is complete; otherwise it waits.
    fn match_halves(
        &mut self,
        entry: &Value,
        mut exchange: Exchange,
    ) -> Result<Option<Exchange>, TraceError> {
        if let Some(chunk) = exchange.response.take_if(|response| is_chunk(response)) {
            let id = chunk.get("id").and_then(Value::as_str).unwrap_or_default();
            self.n_bytes += value_bytes(&chunk) + exchange.request.as_ref().map_or(0, value_bytes);
            self.check(&exchange.location)?;
            let location = exchange.location.clone();
            let stream = self
                .streams
                .get_or_insert(id, || (exchange, Chunks::default()));
            if let Some((waiting, chunks)) = stream {
                waiting.location = location;
                chunks.add(&chunk);
            }
            return Ok(None);
        }
        let id = entry.get("custom_id").and_then(Value::as_str);
        let (Some(id), true) = (
            id,
            exchange.request.is_some() != exchange.response.is_some(),
        ) else {
            return Ok(Some(exchange));
        };
        let is_other_half =
            |waiting: &Exchange| waiting.request.is_some() == exchange.response.is_some();
        let waiting = self.halves.get_or_insert(id, Exchange::default);
        if waiting.is_some_and(|waiting| {
            (waiting.request.is_some() || waiting.response.is_some()) && is_other_half(waiting)
        }) {
            let waiting = self.halves.remove(id).unwrap_or_default();
            exchange.request = exchange.request.or(waiting.request);
            exchange.response = exchange.response.or(waiting.response);
            exchange.outcome = exchange.outcome.or(waiting.outcome);
            return Ok(Some(exchange));
        }
        let halves = [&exchange.request, &exchange.response];
        self.n_bytes += halves.into_iter().flatten().map(value_bytes).sum::<usize>();
        self.check(&exchange.location)?;
        if let Some(waiting) = self.halves.get_or_insert(id, Exchange::default) {
            *waiting = exchange;
        }
        Ok(None)
    }

    fn check(&self, location: &str) -> Result<(), TraceError> {
        match self.n_bytes > TRACE_BYTES {
            true => Err(TraceError::TooMuch {
                location: location.to_owned(),
            }),
            false => Ok(()),
        }
    }

    /// Returns the streamed responses, and counts the halves without the other one.
    pub(crate) fn finish(self, report: &mut Drops<'_>) -> Vec<Trace> {
        let mut complete = Vec::new();
        for (mut exchange, chunks) in self.streams.into_values() {
            exchange.response = Some(chunks.into_response());
            complete.extend(exchange.into_trace(report));
        }
        for half in self.halves.into_values() {
            let reason = if half.request.is_some() {
                NO_RESPONSE
            } else {
                NO_REQUEST
            };
            report.dropped.add(reason, &half.location);
        }
        complete
    }
}

/// The counts that reading a request adds to.
pub(crate) struct Drops<'r> {
    pub(crate) dropped: &'r mut Counts,
    pub(crate) left_out: &'r mut Counts,
}

impl Exchange {
    fn read(entry: &Value, location: &str, rule: &OutcomeRule) -> Self {
        let body = |value: &Value| {
            let value = parsed(value);
            value.get("body").map_or_else(|| value.clone(), parsed)
        };
        let field = |name: &str| entry.get(name).filter(|value| !value.is_null());
        let has = |name: &str| field(name).is_some();
        let request = match field("request").or(field("body").filter(|_| !has("response"))) {
            Some(request) => Some(body(request)),
            None if has("messages") || has("input") => Some(entry.clone()),
            None if entry.is_array() => Some(serde_json::json!({"messages": entry})),
            None => None,
        };
        let response = match field("response").or(field("error")) {
            Some(response) => Some(body(response)),
            None if has("choices") || has("output") => Some(entry.clone()),
            None => None,
        };
        Self {
            location: location.to_owned(),
            request,
            response,
            outcome: rule.of_entry(entry),
        }
    }

    /// The conversation, or a count of why there is none.
    fn into_trace(self, report: &mut Drops<'_>) -> Option<Trace> {
        let Some(request) = &self.request else {
            report.dropped.add(NO_REQUEST, &self.location);
            return None;
        };
        let mut trace = Trace::new(TraceSource::Requests, &self.location);
        trace.outcome = self.outcome;
        if !add_request(&mut trace, request, report.left_out) {
            report.dropped.add(NO_MESSAGES, &self.location);
            return None;
        }
        let Some(response) = &self.response else {
            return Some(trace);
        };
        match add_response(&mut trace, response, report.left_out) {
            Ok(()) => Some(trace),
            Err(reason) => {
                report.dropped.add(reason, &self.location);
                None
            }
        }
    }
}

/// A string of JSON as a value; a stream as the list of its events.
fn parsed(value: &Value) -> Value {
    match value {
        Value::String(text) => match tooltune_json::parse_unique(text.trim()) {
            Ok(parsed) => parsed,
            Err(_) => events_of_text(text).map_or_else(|| value.clone(), Value::Array),
        },
        other => other.clone(),
    }
}

/// Adds the messages and tools of a request; whether it has messages.
fn add_request(trace: &mut Trace, request: &Value, left_out: &mut Counts) -> bool {
    let none = Map::new();
    let fields = request.as_object().unwrap_or(&none);
    let system = fields.get("system").or(fields.get("instructions"));
    if let Some(system) = system.filter(|system| !system.is_null()) {
        let content = Map::from_iter([("content".to_owned(), system.clone())]);
        trace.push(chat::turns_of(&content, Role::System));
    }
    let lists = ["tools", "functions"];
    let tools = lists
        .iter()
        .filter_map(|name| fields.get(*name)?.as_array());
    for tool in tools.flatten() {
        match chat::tool(tool) {
            Some(tool) => trace.tools.push(tool),
            None => left_out.add("a tool that the server runs", &trace.location),
        }
    }
    match (fields.get("messages"), fields.get("input")) {
        (Some(Value::Array(messages)), _) => {
            for message in messages {
                trace.push(chat::turns(message));
            }
        }
        (_, Some(Value::String(input))) => {
            trace.push(Ok(vec![Turn::new(Role::User, Some(input.clone()))]));
        }
        (_, Some(Value::Array(items))) => {
            for item in items {
                add_item(trace, item, left_out);
            }
        }
        _ => return false,
    }
    true
}

/// Adds the answer of a response.
///
/// # Errors
///
/// - the response is an error, or has an unknown layout
fn add_response(trace: &mut Trace, response: &Value, left_out: &mut Counts) -> Result<(), Problem> {
    let joined;
    let response = match response {
        Value::Array(events) => {
            joined = join(events).ok_or(UNKNOWN_RESPONSE)?;
            &joined
        }
        other => other,
    };
    let reason = |value: &Value, name: &str| {
        let reason = value.get(name).and_then(Value::as_str).map(str::to_owned);
        reason.unwrap_or_default()
    };
    if let Some(Value::Array(choices)) = response.get("choices") {
        let first = choices.first().ok_or(FAILED)?;
        for _ in choices.iter().skip(1) {
            left_out.add(chat::MORE_CHOICES, &trace.location);
        }
        let turns = match chat::is_unfinished(&reason(first, "finish_reason")) {
            true => Err(chat::UNFINISHED),
            false => match first.get("message").and_then(Value::as_object) {
                Some(message) => chat::turns_of(message, Role::Assistant),
                None => return Err(UNKNOWN_RESPONSE),
            },
        };
        trace.push(turns);
    } else if let Some(Value::Array(items)) = response.get("output") {
        if reason(response, "status") == "incomplete" {
            trace.push(Err(chat::UNFINISHED));
        }
        for item in items {
            add_item(trace, item, left_out);
        }
    } else if response.get("role").is_some() && response.get("content").is_some() {
        let turns = match chat::is_unfinished(&reason(response, "stop_reason")) {
            true => Err(chat::UNFINISHED),
            false => chat::turns(response),
        };
        trace.push(turns);
    } else if ["error", "code", "message"]
        .iter()
        .any(|name| response.get(*name).is_some())
    {
        return Err(FAILED);
    } else {
        return Err(UNKNOWN_RESPONSE);
    }
    Ok(())
}
