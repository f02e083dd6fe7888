//! Calls and results of tools that do not belong together.
//!
//! The decision to question: they are told and counted, not refused. A template renders them all, and
//! public rows are full of them; but a model that learns a call without its result, or a result with
//! tags around it that no server writes, learns what it will never see. Only a result that names
//! another tool than the call it answers is an error: one of the two is wrong.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::conversation::{Conversation, Message, Role};
use super::error::DataError;
use super::message_fields::MessageFieldError;

/// The tag that templates put around the result of a call, and some data sets, too.
const TAG: &str = "<tool_response>";

/// How often something stands in the messages of rows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InMessages {
    /// Messages or calls that have it.
    pub n: usize,
    /// The first of them, such as `rows.jsonl:3, messages[2]`; none where there is none.
    pub first: Option<String>,
}

/// What of the calls and results in the rows does not belong together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolNotes {
    /// Results that bring the tag `<tool_response>` that a template writes.
    pub tagged_results: InMessages,
    /// Results with a `tool_call_id` that no call before them has.
    pub ids_without_call: InMessages,
    /// Calls without a result in conversations that go on after them.
    pub calls_without_result: InMessages,
}

impl InMessages {
    fn count(&mut self, first: impl FnOnce() -> String) {
        self.n += 1;
        self.first.get_or_insert_with(first);
    }

    fn add(&mut self, later: &Self) {
        self.n += later.n;
        self.first = self.first.take().or_else(|| later.first.clone());
    }

    fn line(&self, what: &str, what_to_do: &str) -> Option<String> {
        let first = self.first.as_ref()?;
        Some(format!(
            "{what}: {}, the first {first}; {what_to_do}",
            self.n
        ))
    }
}

impl ToolNotes {
    /// Adds the counts of a further file.
    pub(super) fn add(&mut self, later: &Self) {
        self.tagged_results.add(&later.tagged_results);
        self.ids_without_call.add(&later.ids_without_call);
        self.calls_without_result.add(&later.calls_without_result);
    }

    /// A line for each kind that the rows have.
    pub(super) fn lines(&self) -> Vec<String> {
        let lines = [
            self.tagged_results.line(
                "results of tools that bring their own <tool_response>",
                "the chat template writes what stands around a result, so take the tags out of the rows",
            ),
            self.ids_without_call.line(
                "results of tools whose tool_call_id no call before them has",
                "give the call that id, or take the field out",
            ),
            self.calls_without_result.line(
                "calls without a result where the conversation goes on",
                "add the message of the tool, or end the row with the call",
            ),
        ];
        lines.into_iter().flatten().collect()
    }

    /// Counts those of a row; `calls_of` says where the calls of a message stand, by its position, as in
    /// `messages[2].tool_calls`.
    pub(super) fn count(
        &mut self,
        id: &str,
        conversation: &Conversation,
        calls_of: impl Fn(usize) -> String,
    ) {
        let place = |message: usize| {
            let calls = calls_of(message);
            let message = calls
                .rsplit_once('.')
                .map(|(message, _)| message.to_owned());
            format!("{id}, {}", message.unwrap_or(calls))
        };
        let answers = Answers::of(conversation);
        for (idx, message) in conversation.messages.iter().enumerate() {
            if message.role == Role::Tool && brings_tag(message) {
                self.tagged_results.count(|| place(idx));
            }
        }
        for message in answers.strangers {
            self.ids_without_call.count(|| place(message));
        }
        let last = conversation.messages.len().saturating_sub(1);
        let open = answers.calls.iter().filter(|call| !call.is_answered);
        for call in open.filter(|call| call.message < last) {
            self.calls_without_result
                .count(|| format!("{id}, {}[{}]", calls_of(call.message), call.idx));
        }
    }
}

/// Refuses a result that names another tool than the call it answers by its id.
///
/// # Errors
///
/// - a result is such a one
pub(super) fn must_name_their_calls(
    conversation: &Conversation,
    calls_of: impl Fn(usize) -> String,
) -> Result<(), DataError> {
    let Some((result, call)) = Answers::of(conversation).misnamed else {
        return Ok(());
    };
    let calls = calls_of(result);
    let field = calls
        .rsplit_once('.')
        .map_or(&*calls, |(message, _)| message);
    let name = |message: &Message| {
        message
            .extra
            .get("name")
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    Err(MessageFieldError::ResultOfAnother {
        field: format!("{field}.name"),
        name: name(&conversation.messages[result]).unwrap_or_default(),
        call: format!("{}[{}]", calls_of(call.message), call.idx),
        called: call.name.to_owned(),
    }
    .into())
}

fn brings_tag(message: &Message) -> bool {
    let content = message.content.as_deref().unwrap_or_default();
    content.trim_start().starts_with(TAG)
}

/// A call of a conversation.
#[derive(Debug, Clone, Copy)]
struct Call<'c> {
    message: usize,
    idx: usize,
    name: &'c str,
    has_id: bool,
    is_answered: bool,
}

/// The calls with one id in the last message that has it.
#[derive(Debug)]
struct SameId {
    message: usize,
    waiting: VecDeque<usize>,
    /// Whether it is the id of several calls, so that it says of none which one is meant.
    is_shared: bool,
}

/// Which calls have a result, and which results have no call.
#[derive(Debug, Default)]
struct Answers<'c> {
    calls: Vec<Call<'c>>,
    by_id: HashMap<&'c str, SameId>,
    /// Messages with an id that no call before them has.
    strangers: Vec<usize>,
    /// The first result that names another tool than its call.
    misnamed: Option<(usize, Call<'c>)>,
    /// The first call of the last message with calls that may be without a result.
    next: usize,
}

impl<'c> Answers<'c> {
    fn of(conversation: &'c Conversation) -> Self {
        let mut answers = Self::default();
        for (idx, message) in conversation.messages.iter().enumerate() {
            match message.role {
                Role::Assistant if !message.tool_calls.is_empty() => {
                    answers.add_calls(idx, message)
                }
                Role::Tool => answers.add_result(idx, message),
                _ => {}
            }
        }
        answers
    }

    fn add_calls(&mut self, message_idx: usize, message: &'c Message) {
        self.next = self.calls.len();
        for (idx, call) in message.tool_calls.iter().enumerate() {
            if let Some(id) = &call.id {
                self.add_id(id, message_idx);
            }
            self.calls.push(Call {
                message: message_idx,
                idx,
                name: &call.name,
                has_id: call.id.is_some(),
                is_answered: false,
            });
        }
    }

    /// Notes the id of the call that comes next.
    fn add_id(&mut self, id: &'c str, message: usize) {
        let call = self.calls.len();
        match self.by_id.get_mut(id) {
            Some(same) if same.message == message => {
                same.waiting.push_back(call);
                same.is_shared = true;
            }
            _ => {
                let waiting = VecDeque::from([call]);
                let is_shared = false;
                let same = SameId {
                    message,
                    waiting,
                    is_shared,
                };
                self.by_id.insert(id, same);
            }
        }
    }

    /// A result is that of the call with its id, and without an id that of the first call before it
    /// that has none yet.
    fn add_result(&mut self, message_idx: usize, message: &Message) {
        let Some(id) = message.extra.get("tool_call_id") else {
            return self.answer_next(|_| true);
        };
        let Some(same) = id.as_str().and_then(|id| self.by_id.get_mut(id)) else {
            self.strangers.push(message_idx);
            return self.answer_next(|call| !call.has_id);
        };
        // A second result of one call answers none.
        let Some(call) = same.waiting.pop_front() else {
            return;
        };
        self.calls[call].is_answered = true;
        let name = message.extra.get("name").and_then(Value::as_str);
        if !same.is_shared && name.is_some_and(|name| name != self.calls[call].name) {
            self.misnamed.get_or_insert((message_idx, self.calls[call]));
        }
    }

    fn answer_next(&mut self, may_be: impl Fn(&Call<'_>) -> bool) {
        while self
            .calls
            .get(self.next)
            .is_some_and(|call| call.is_answered)
        {
            self.next += 1;
        }
        if let Some(call) = self.calls.get_mut(self.next).filter(|call| may_be(call)) {
            call.is_answered = true;
        }
    }
}
