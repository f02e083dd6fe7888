//! Finds tool calls and tool results that do not match.
//!
//! Mismatches are reported and counted, not rejected, because templates render them and public rows
//! contain many. They are still harmful: a call without its result, or a result inside tags that no
//! server writes, never occurs at inference. Two kinds are errors, because one of two values must
//! be wrong: a result that names a different tool than its call, and a result whose id no earlier
//! call has.
//!
//! # Source
//!
//! OpenAI's API reference of chat completions: `tool_call_id` is the id of the call that the
//! message responds to. A request with an id that no preceding call has is refused.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_template::TemplateError;
use tooltune_template::conversation::{Conversation, Message, Role};
use tooltune_template::message_fields::MessageFieldError;

use super::error::DataError;

/// The tag that templates, and some data sets, put around the result of a call.
const TAG: &str = "<tool_response>";

/// Number of occurrences in the messages of rows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InMessages {
    /// Number of messages or calls.
    pub n: usize,
    /// The first occurrence, such as `rows.jsonl:3, messages[2]`; `None` if there is none.
    pub first: Option<String>,
}

/// Mismatches between calls and results in rows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolNotes {
    /// Results that contain the tag `<tool_response>`, which the template also writes.
    pub tagged_results: InMessages,
    /// Results whose `tool_call_id` no earlier call has.
    pub ids_without_call: InMessages,
    /// Calls without a result in conversations that continue after them.
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

    fn line(&self, description: &str, remedy: &str) -> Option<String> {
        let first = self.first.as_ref()?;
        Some(format!(
            "{description}: {}, the first {first}; {remedy}",
            self.n
        ))
    }
}

impl ToolNotes {
    /// Adds the counts of a later file.
    pub(super) fn add(&mut self, later: &Self) {
        self.tagged_results.add(&later.tagged_results);
        self.ids_without_call.add(&later.ids_without_call);
        self.calls_without_result.add(&later.calls_without_result);
    }

    /// One line per kind of mismatch.
    pub(super) fn lines(&self) -> Vec<String> {
        let lines = [
            self.tagged_results.line(
                "tool results that contain <tool_response> tags",
                "the chat template writes these tags, so remove them from the rows",
            ),
            self.ids_without_call.line(
                "tool results whose tool_call_id matches no earlier call",
                "give the call that id, or remove the field",
            ),
            self.calls_without_result.line(
                "calls without a result in conversations that continue",
                "add the tool message, or end the row with the call",
            ),
        ];
        lines.into_iter().flatten().collect()
    }

    /// Counts the mismatches of a row. `calls_of` maps the index of a message to the path of its
    /// calls, such as `messages[2].tool_calls`.
    pub(super) fn count(
        &mut self,
        id: &str,
        conversation: &Conversation,
        calls_of: impl Fn(usize) -> String,
    ) {
        let location = |message: usize| {
            let calls = calls_of(message);
            let message = calls
                .rsplit_once('.')
                .map(|(message, _)| message.to_owned());
            format!("{id}, {}", message.unwrap_or(calls))
        };
        let answers = ResultMatcher::new(conversation);
        for (idx, message) in conversation.messages.iter().enumerate() {
            if message.role == Role::Tool && starts_with_result_tag(message) {
                self.tagged_results.count(|| location(idx));
            }
        }
        let mut strangers = [answers.unmatched_without_ids, answers.unmatched_with_ids].concat();
        strangers.sort_unstable();
        for message in strangers {
            self.ids_without_call.count(|| location(message));
        }
        let last = conversation.messages.len().saturating_sub(1);
        let open = answers.calls.iter().filter(|call| !call.is_answered);
        for call in open.filter(|call| call.message < last) {
            self.calls_without_result
                .count(|| format!("{id}, {}[{}]", calls_of(call.message), call.idx));
        }
    }
}

/// Rejects a result that names a different tool than the call with its id, and a result whose id no
/// earlier call has.
///
/// # Errors
///
/// - a result is rejected
pub(super) fn check_result_names(
    conversation: &Conversation,
    calls_of: impl Fn(usize) -> String,
) -> Result<(), DataError> {
    let answers = ResultMatcher::new(conversation);
    let message_of = |result: usize| {
        let calls = calls_of(result);
        let message = calls
            .rsplit_once('.')
            .map(|(message, _)| message.to_owned());
        message.unwrap_or(calls)
    };
    if let Some(&result) = answers.unmatched_with_ids.first() {
        let id = &conversation.messages[result].extra["tool_call_id"];
        return Err(TemplateError::from(MessageFieldError::ResultOfNoCall {
            field: format!("{}.tool_call_id", message_of(result)),
            id: id.as_str().map_or_else(|| id.to_string(), str::to_owned),
            calls: ids_before(conversation, result),
        })
        .into());
    }
    let Some((result, call)) = answers.misnamed else {
        return Ok(());
    };
    let field = message_of(result);
    let name = |message: &Message| {
        message
            .extra
            .get("name")
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    Err(TemplateError::from(MessageFieldError::ResultOfAnother {
        field: format!("{field}.name"),
        name: name(&conversation.messages[result]).unwrap_or_default(),
        call: format!("{}[{}]", calls_of(call.message), call.idx),
        called: call.name.to_owned(),
    })
    .into())
}

/// Maximum number of ids in an error.
const MAX_IDS: usize = 6;

/// The ids of the calls before a message, the latest ones if there are many.
fn ids_before(conversation: &Conversation, message: usize) -> String {
    let calls = conversation.messages[..message].iter().rev();
    let calls = calls.flat_map(|message| message.tool_calls.iter().rev());
    let mut ids: Vec<String> = calls
        .filter_map(|call| Some(format!("{:?}", call.id.as_ref()?)))
        .take(MAX_IDS + 1)
        .collect();
    if ids.len() > MAX_IDS {
        ids[MAX_IDS] = "…".to_owned();
    }
    ids.reverse();
    ids.join(", ")
}

fn starts_with_result_tag(message: &Message) -> bool {
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

/// The calls with the same id in the last message that has it.
#[derive(Debug)]
struct SameId {
    message: usize,
    waiting: VecDeque<usize>,
    /// Whether several calls have this id, so it identifies none of them.
    is_shared: bool,
}

/// Matches calls and results.
#[derive(Debug, Default)]
struct ResultMatcher<'c> {
    calls: Vec<Call<'c>>,
    by_id: HashMap<&'c str, SameId>,
    /// Messages with an id that no earlier call has, because the calls have no ids.
    unmatched_without_ids: Vec<usize>,
    /// Messages with an id that no earlier call has, although some calls have ids.
    unmatched_with_ids: Vec<usize>,
    /// The first result that names a different tool than its call.
    misnamed: Option<(usize, Call<'c>)>,
    /// The first call of the last message with calls that may have no result.
    first_open_call: usize,
}

impl<'c> ResultMatcher<'c> {
    fn new(conversation: &'c Conversation) -> Self {
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
        self.first_open_call = self.calls.len();
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

    /// Records the id of the next call.
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

    /// A result belongs to the call with its id. A result without an id belongs to the first
    /// earlier call without a result.
    fn add_result(&mut self, message_idx: usize, message: &Message) {
        let Some(id) = message.extra.get("tool_call_id") else {
            self.answer_next(|_| true);
            return;
        };
        let Some(same) = id.as_str().and_then(|id| self.by_id.get_mut(id)) else {
            let is_stranger = self.answer_next(|call| !call.has_id) || self.by_id.is_empty();
            let messages = match is_stranger {
                true => &mut self.unmatched_without_ids,
                false => &mut self.unmatched_with_ids,
            };
            return messages.push(message_idx);
        };
        // A second result for the same call matches nothing.
        let Some(call) = same.waiting.pop_front() else {
            return;
        };
        self.calls[call].is_answered = true;
        let name = message.extra.get("name").and_then(Value::as_str);
        if !same.is_shared && name.is_some_and(|name| name != self.calls[call].name) {
            self.misnamed.get_or_insert((message_idx, self.calls[call]));
        }
    }

    /// Marks the first call without a result as answered if `is_match` accepts it, and returns
    /// whether it does.
    fn answer_next(&mut self, is_match: impl Fn(&Call<'_>) -> bool) -> bool {
        while self
            .calls
            .get(self.first_open_call)
            .is_some_and(|call| call.is_answered)
        {
            self.first_open_call += 1;
        }
        let call = self
            .calls
            .get_mut(self.first_open_call)
            .filter(|call| is_match(call));
        let is_found = call.is_some();
        if let Some(call) = call {
            call.is_answered = true;
        }
        is_found
    }
}
