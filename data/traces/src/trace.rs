//! A conversation as a layout gives it, before it is repaired.

use serde_json::{Map, Value};
use tooltune_template::conversation::Role;

use crate::source::TraceSource;

/// Why a message cannot be used, or why a row is dropped; the key of a count.
pub(crate) type Problem = &'static str;

/// The model called a tool.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    /// The id in the trace.
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    /// An object, or its JSON as a string.
    pub(crate) arguments: Value,
}

impl Call {
    /// The arguments of a repaired call, which are an object.
    pub(crate) fn arguments(&self) -> &Map<String, Value> {
        static EMPTY: std::sync::LazyLock<Map<String, Value>> =
            std::sync::LazyLock::new(Map::default);
        self.arguments.as_object().unwrap_or(&EMPTY)
    }
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Turn {
    pub(crate) role: Role,
    pub(crate) content: Option<String>,
    pub(crate) reasoning: Option<String>,
    pub(crate) calls: Vec<Call>,
    /// For a result: the id of its call.
    pub(crate) call_id: Option<String>,
    /// For a result: the name of the tool.
    pub(crate) name: Option<String>,
}

impl Turn {
    pub(crate) fn new(role: Role, content: Option<String>) -> Self {
        Self {
            role,
            content,
            reasoning: None,
            calls: Vec::new(),
            call_id: None,
            name: None,
        }
    }

    /// The result of a call.
    pub(crate) fn result(call_id: Option<String>, name: Option<String>, content: String) -> Self {
        Self {
            call_id,
            name,
            ..Self::new(Role::Tool, Some(content))
        }
    }

    /// Whether an assistant message has neither text nor calls.
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.content.as_deref().is_none_or(str::is_empty)
    }
}

/// A conversation of a file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Trace {
    pub(crate) source: TraceSource,
    /// The location of its last entry.
    pub(crate) location: String,
    pub(crate) turns: Vec<Turn>,
    /// Tools in OpenAI's format.
    pub(crate) tools: Vec<Value>,
    /// Why the messages end early: the next one cannot be used.
    pub(crate) cut: Option<Problem>,
    /// The outcome, if the trace has one.
    pub(crate) outcome: Option<f64>,
}

impl Trace {
    pub(crate) fn new(source: TraceSource, location: &str) -> Self {
        Self {
            source,
            location: location.to_owned(),
            turns: Vec::new(),
            tools: Vec::new(),
            cut: None,
            outcome: None,
        }
    }

    /// Adds the turns of a message. After a message that cannot be used, all others are ignored,
    /// because the model's later answers depend on it.
    pub(crate) fn push(&mut self, turns: Result<Vec<Turn>, Problem>) {
        if self.cut.is_some() {
            return;
        }
        match turns {
            Ok(turns) => self.turns.extend(turns),
            Err(problem) => self.cut = Some(problem),
        }
    }

    /// Adds a part of an answer that the layout stores separately: it joins the answer before it,
    /// unless other messages are between them.
    pub(crate) fn push_answer_part(&mut self, part: Turn) {
        if self.cut.is_some() {
            return;
        }
        match self.turns.last_mut() {
            Some(last) if last.role == Role::Assistant => join_answer(last, part),
            _ => self.turns.push(part),
        }
    }
}

/// Adds a part of an answer to the answer.
pub(crate) fn join_answer(answer: &mut Turn, part: Turn) {
    append(&mut answer.content, part.content);
    append(&mut answer.reasoning, part.reasoning);
    answer.calls.extend(part.calls);
}

/// Appends text on a new line, as the row reader joins text parts.
pub(crate) fn append(text: &mut Option<String>, more: Option<String>) {
    match (text.as_mut(), more) {
        (_, None) => {}
        (Some(text), Some(more)) if !text.is_empty() => {
            text.push('\n');
            text.push_str(&more);
        }
        (_, Some(more)) => *text = Some(more),
    }
}

/// Bytes of the text of a value, roughly.
pub(crate) fn value_bytes(value: &Value) -> usize {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| name.len() + 4 + value_bytes(value))
            .sum(),
        Value::Array(items) => items.iter().map(|item| 1 + value_bytes(item)).sum(),
        Value::String(text) => text.len() + 2,
        _ => 8,
    }
}
