//! OTLP/JSON: `resourceSpans`, as the file exporter of the OpenTelemetry Collector writes it, and
//! `resourceLogs`.
//!
//! The spans of a trace, and of the traces with the same `gen_ai.conversation.id`, form one group:
//!
//! - Spans of the model (`chat`, `generate_content`, …) are conversations. One that another span of
//!   the group continues is replaced. The messages of `invoke_agent` count only if no other span
//!   has messages, because they leave out the calls.
//! - `execute_tool` spans give the results that a conversation lacks, by `gen_ai.tool.call.id`.
//! - A span without tool definitions has the definitions of the others.
//! - The outcome is the mean of the evaluation scores. Without scores, it is 0 if the span or the
//!   root of the trace has the status error, and 1 if the status of the span is OK.
//!
//! The sources of the layouts are in [`attributes`] and [`span`].

mod attributes;
mod span;

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::budgets::TRACE_BYTES;
use crate::chat::as_text;
use crate::counts::Counts;
use crate::error::TraceError;
use crate::outcome::{self, OutcomeRule};
use crate::repair::fill_results;
use crate::trace::{Trace, value_bytes};
use attributes::{decode, decode_value};
use span::Event;

/// Conversations that a new one is compared with. The rows are compared with all others later;
/// this only bounds memory.
const COMPARED: usize = 8;

/// An event that has the messages as attributes.
const DETAILS: &str = "gen_ai.client.inference.operation.details";

/// Whether an entry has this layout.
pub(crate) fn is_known(fields: &Map<String, Value>) -> bool {
    fields.contains_key("resourceSpans") || fields.contains_key("resourceLogs")
}

/// The spans of all files.
#[derive(Default)]
pub(crate) struct Spans {
    groups: Vec<Group>,
    by_trace: HashMap<String, usize>,
    n_bytes: usize,
}

/// What the spans of a trace say.
#[derive(Default)]
struct Group {
    conversation_id: Option<String>,
    conversations: Vec<Trace>,
    /// Conversations of agent spans.
    agents: Vec<Trace>,
    /// Messages in log records, by span.
    logged: Vec<(String, Logged)>,
    /// Results of calls by id.
    results: HashMap<String, String>,
    scores: Vec<f64>,
    /// The outcome at the pointer of `--outcome`.
    at_pointer: Option<f64>,
    has_failed: bool,
}

struct Logged {
    location: String,
    events: Vec<Event>,
}

impl Spans {
    /// Adds the spans and log records of an entry.
    ///
    /// # Errors
    ///
    /// - the conversations exceed their limit
    pub(crate) fn add(
        &mut self,
        entry: &Value,
        location: &str,
        rule: &OutcomeRule,
        left_out: &mut Counts,
    ) -> Result<(), TraceError> {
        for span in items(entry, ["resourceSpans", "scopeSpans", "spans"]) {
            self.add_span(span, location, rule, left_out);
        }
        for record in items(entry, ["resourceLogs", "scopeLogs", "logRecords"]) {
            self.add_log(record, location, left_out);
        }
        match self.n_bytes > TRACE_BYTES {
            true => Err(TraceError::TooMuch {
                location: location.to_owned(),
            }),
            false => Ok(()),
        }
    }

    fn group(&mut self, record: &Value) -> &mut Group {
        let trace_id = record.get("traceId").and_then(Value::as_str);
        let trace_id = trace_id.unwrap_or_default().to_owned();
        let groups = &mut self.groups;
        let idx = *self.by_trace.entry(trace_id).or_insert_with(|| {
            groups.push(Group::default());
            groups.len() - 1
        });
        &mut groups[idx]
    }

    fn add_span(
        &mut self,
        span: &Value,
        location: &str,
        rule: &OutcomeRule,
        left_out: &mut Counts,
    ) {
        let mut attributes = decode(span.get("attributes"));
        let mut events = Vec::new();
        for event in span
            .get("events")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            let name = event
                .get("name")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let fields = decode(event.get("attributes"));
            match name {
                DETAILS => attributes.extend(fields),
                name => events.push((name.to_owned(), fields)),
            }
        }
        let at_pointer = rule.pointer.as_ref().and_then(|_| {
            let mut view = span.as_object()?.clone();
            view.insert("attributes".to_owned(), attributes.clone().into());
            rule.at_pointer(&Value::Object(view))
        });
        let conversation = span::conversation(&attributes, &events, location, left_out);
        let operation = attributes
            .get("gen_ai.operation.name")
            .and_then(Value::as_str);
        let is_agent = operation.is_some_and(|name| name.starts_with("invoke_"));
        let is_root = span
            .get("parentSpanId")
            .and_then(Value::as_str)
            .unwrap_or_default()
            == "";
        let status = status(span);
        let group = self.group(span);
        group.note_conversation(&attributes);
        group.at_pointer = at_pointer.or(group.at_pointer);
        group.scores.extend(events.iter().filter_map(score));
        group.has_failed |= is_root && status == Some(0.0);
        let mut n_added = group.add_result(&attributes);
        if let Some(mut trace) = conversation {
            trace.outcome = status;
            n_added += match is_agent {
                true => keep_longest(&mut group.agents, trace),
                false => keep_longest(&mut group.conversations, trace),
            };
        }
        self.n_bytes = self.n_bytes.saturating_add_signed(n_added);
    }

    fn add_log(&mut self, record: &Value, location: &str, left_out: &mut Counts) {
        let attributes = decode(record.get("attributes"));
        let name = record.get("eventName").or(attributes.get("event.name"));
        let name = name.and_then(Value::as_str).unwrap_or_default().to_owned();
        if !name.starts_with("gen_ai.") {
            return;
        }
        let mut fields = attributes;
        if let Some(Value::Object(body)) = record.get("body").map(decode_value) {
            fields.extend(body);
        }
        let n_bytes = value_bytes(&Value::Object(fields.clone()));
        let span_id = record
            .get("spanId")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let group = self.group(record);
        group.note_conversation(&fields);
        let event = (name, fields);
        group.scores.extend(score(&event));
        let mut n_added = 0;
        if event.0 == DETAILS {
            if let Some(trace) = span::conversation(&event.1, &[], location, left_out) {
                n_added = keep_longest(&mut group.conversations, trace);
            }
        } else if !event.0.starts_with("gen_ai.evaluation") {
            n_added = n_bytes.cast_signed();
            match group.logged.last_mut() {
                Some((last, logged)) if *last == span_id => logged.events.push(event),
                _ => group.logged.push((
                    span_id,
                    Logged {
                        location: location.to_owned(),
                        events: vec![event],
                    },
                )),
            }
        }
        self.n_bytes = self.n_bytes.saturating_add_signed(n_added);
    }

    /// The conversations, in the order of their traces.
    pub(crate) fn finish(self, left_out: &mut Counts) -> impl Iterator<Item = Trace> + use<> {
        let mut groups: Vec<Group> = Vec::new();
        let mut by_conversation: HashMap<String, usize> = HashMap::new();
        for mut group in self.groups {
            group.read_logs(left_out);
            let id = group.conversation_id.clone();
            match id.as_ref().and_then(|id| by_conversation.get(id)) {
                Some(&idx) => groups[idx].join(group),
                None => {
                    if let Some(id) = id {
                        by_conversation.insert(id, groups.len());
                    }
                    groups.push(group);
                }
            }
        }
        groups.into_iter().flat_map(Group::into_traces)
    }
}

impl Group {
    fn note_conversation(&mut self, attributes: &Map<String, Value>) {
        let id = attributes
            .get("gen_ai.conversation.id")
            .and_then(Value::as_str);
        if let Some(id) = id {
            self.conversation_id.get_or_insert_with(|| id.to_owned());
        }
    }

    /// Records the result of an `execute_tool` span; returns its bytes.
    fn add_result(&mut self, attributes: &Map<String, Value>) -> isize {
        let id = attributes
            .get("gen_ai.tool.call.id")
            .and_then(Value::as_str);
        let (Some(id), Some(result)) = (id, attributes.get("gen_ai.tool.call.result")) else {
            return 0;
        };
        let result = as_text(result);
        let n_bytes = (id.len() + result.len()).cast_signed();
        self.results.insert(id.to_owned(), result);
        n_bytes
    }

    /// Builds the conversations whose messages are log records.
    fn read_logs(&mut self, left_out: &mut Counts) {
        // Records of parallel requests alternate.
        let mut by_span: Vec<(String, Logged)> = Vec::new();
        let mut positions: HashMap<String, usize> = HashMap::new();
        for (span_id, logged) in std::mem::take(&mut self.logged) {
            match positions.get(&span_id) {
                Some(&idx) => by_span[idx].1.events.extend(logged.events),
                None => {
                    positions.insert(span_id.clone(), by_span.len());
                    by_span.push((span_id, logged));
                }
            }
        }
        for (_, Logged { location, events }) in by_span {
            let trace = span::conversation(&Map::new(), &events, &location, left_out);
            if let Some(trace) = trace {
                keep_longest(&mut self.conversations, trace);
            }
        }
    }

    fn join(&mut self, other: Self) {
        self.conversations.extend(other.conversations);
        self.agents.extend(other.agents);
        self.results.extend(other.results);
        self.scores.extend(other.scores);
        self.at_pointer = other.at_pointer.or(self.at_pointer);
        self.has_failed |= other.has_failed;
    }

    fn into_traces(self) -> impl Iterator<Item = Trace> {
        let mut traces = self.conversations;
        if traces.is_empty() {
            traces = self.agents;
        }
        let longest = traces
            .iter()
            .map(|trace| &trace.tools)
            .max_by_key(|tools| tools.len());
        let tools = longest.cloned().unwrap_or_default();
        let n_scores = self.scores.len() as f64;
        let mean = self.scores.iter().sum::<f64>() / n_scores;
        let mean = Some(mean).filter(|_| n_scores > 0.0);
        let failed = self.has_failed.then_some(0.0);
        traces.into_iter().map(move |mut trace| {
            if trace.tools.is_empty() {
                trace.tools.clone_from(&tools);
            }
            fill_results(&mut trace.turns, &self.results);
            trace.outcome = self.at_pointer.or(mean).or(failed).or(trace.outcome);
            trace
        })
    }
}

/// The items of a list in a list in a list.
fn items<'v>(entry: &'v Value, names: [&'static str; 3]) -> impl Iterator<Item = &'v Value> {
    let list = |value: &'v Value, name: &str| {
        value
            .get(name)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    };
    let resources = list(entry, names[0]);
    let scopes = resources.flat_map(move |resource| list(resource, names[1]));
    scopes.flat_map(move |scope| list(scope, names[2]))
}

/// 0 for the status error, 1 for OK.
fn status(span: &Value) -> Option<f64> {
    match span.pointer("/status/code")? {
        Value::Number(code) if code.as_u64() == Some(2) => Some(0.0),
        Value::Number(code) if code.as_u64() == Some(1) => Some(1.0),
        Value::String(code) if code == "STATUS_CODE_ERROR" => Some(0.0),
        Value::String(code) if code == "STATUS_CODE_OK" => Some(1.0),
        _ => None,
    }
}

/// The score of an evaluation event.
fn score((name, fields): &Event) -> Option<f64> {
    if !name.starts_with("gen_ai.evaluation.") {
        return None;
    }
    let names = [
        "gen_ai.evaluation.score.value",
        "gen_ai.evaluation.score.label",
        "gen_ai.evaluation.score",
    ];
    names
        .iter()
        .find_map(|name| outcome::read(fields.get(*name)?))
}

/// Adds a conversation unless a recent one continues it, and removes the recent ones that it
/// continues. Returns the change in bytes.
fn keep_longest(traces: &mut Vec<Trace>, mut trace: Trace) -> isize {
    let recent = traces.len().saturating_sub(COMPARED);
    let begins = |one: &Trace, other: &Trace| {
        one.cut.is_none() && one.turns.len() < other.turns.len() && {
            let pairs = one.turns.iter().zip(&other.turns);
            pairs.into_iter().all(|(one, other)| {
                // Requests repeat no reasoning.
                one.role == other.role
                    && one.content == other.content
                    && one.calls == other.calls
                    && one.call_id == other.call_id
            })
        }
    };
    if let Some(longer) = traces[recent..]
        .iter_mut()
        .find(|other| begins(&trace, other))
    {
        if longer.tools.is_empty() {
            longer.tools = trace.tools;
        }
        return 0;
    }
    let mut n_added = trace_bytes(&trace);
    let mut kept = traces.split_off(recent);
    kept.retain(|other| {
        let is_replaced = begins(other, &trace);
        if is_replaced {
            n_added -= trace_bytes(other);
            if trace.tools.is_empty() {
                trace.tools.clone_from(&other.tools);
            }
        }
        !is_replaced
    });
    traces.extend(kept);
    traces.push(trace);
    n_added
}

/// Bytes of text in a conversation.
fn trace_bytes(trace: &Trace) -> isize {
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let turns = trace.turns.iter().map(|turn| {
        let calls = turn.calls.iter();
        let calls: usize = calls
            .map(|call| call.name.len() + value_bytes(&call.arguments))
            .sum();
        64 + text(&turn.content) + text(&turn.reasoning) + calls
    });
    let tools = trace.tools.iter().map(value_bytes);
    turns.chain(tools).sum::<usize>().cast_signed()
}
