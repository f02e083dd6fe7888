//! Session files of Claude Code, `~/.claude/projects/PROJECT/SESSION.jsonl`.
//!
//! A line with a `uuid` follows the line of its `parentUuid`. Lines of the types `user` and
//! `assistant` have a `message` of Anthropic's API; an answer is spread over several lines with the
//! same `message.id`. A session is a tree: a message that was edited has two continuations. Every
//! leaf ends a conversation. Sidechains, the work of subagents, have their own roots.
//!
//! The results of parallel calls are on separate lines whose parents are the lines of their calls,
//! so some results are not on the path to the leaf. They are found by `tool_use_id`.
//!
//! # Source
//!
//! There is no official description. Read on 2026-11-30: the descriptions of the format in
//! `alicoding/claude-parser`, `Huntehhh/claude-code-chat` and `jwhenry28/claude-code-visualizer`
//! (versions 1.0.83 to 2.0.74), and Anthropic's API reference for the content blocks.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};
use tooltune_template::conversation::Role;

use crate::budgets::SESSION_BRANCHES;
use crate::chat;
use crate::counts::Counts;
use crate::repair::fill_results;
use crate::source::TraceSource;
use crate::trace::{Problem, Trace, Turn, join_answer};

const MANY_BRANCHES: &str = "a branch of a session beyond SESSION_BRANCHES in docs/limits.md";

/// Types of lines besides `user` and `assistant`.
const OTHERS: [&str; 8] = [
    "summary",
    "system",
    "progress",
    "attachment",
    "file-history-snapshot",
    "queue-operation",
    "last-prompt",
    "custom-title",
];

/// Whether an entry has this layout.
pub(crate) fn is_known(fields: &Map<String, Value>) -> bool {
    let kind = fields
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let has = |name: &str| fields.contains_key(name);
    match kind {
        "user" | "assistant" => has("message") && (has("uuid") || has("sessionId")),
        kind => {
            let names = ["uuid", "sessionId", "leafUuid", "messageId"];
            OTHERS.contains(&kind) && names.into_iter().any(has)
        }
    }
}

/// A line of a session.
struct Line {
    parent: Option<usize>,
    location: String,
    message: Option<Message>,
    n_children: usize,
}

struct Message {
    /// `message.id` of an answer.
    id: Option<String>,
    turns: Result<Vec<Turn>, Problem>,
}

impl Line {
    /// Whether it has only results of calls.
    fn is_only_results(&self) -> bool {
        let turns = self
            .message
            .as_ref()
            .and_then(|message| message.turns.as_ref().ok());
        turns.is_some_and(|turns| {
            !turns.is_empty() && turns.iter().all(|turn| turn.role == Role::Tool)
        })
    }
}

/// The lines of a session file.
#[derive(Default)]
pub(crate) struct Session {
    lines: Vec<Line>,
    by_uuid: HashMap<String, usize>,
    results: HashMap<String, String>,
    outcome: Option<f64>,
}

impl Session {
    /// Adds a line; whether it is part of the tree.
    pub(crate) fn add(&mut self, entry: &Value, location: &str) -> bool {
        let uuid = entry.get("uuid").and_then(Value::as_str);
        let message = message(entry);
        if uuid.is_none() && message.is_none() {
            return false;
        }
        let parent = entry.get("parentUuid").and_then(Value::as_str);
        // A parent is always an earlier line, so a chain has an end. Lines without ids, as in the
        // output of `--output-format stream-json`, follow each other.
        let parent = match uuid {
            Some(_) => parent.and_then(|uuid| self.by_uuid.get(uuid).copied()),
            None => self.lines.len().checked_sub(1),
        };
        if let Some(parent) = parent {
            self.lines[parent].n_children += 1;
        }
        if let Some(Message {
            turns: Ok(turns), ..
        }) = &message
        {
            for turn in turns.iter().filter(|turn| turn.role == Role::Tool) {
                if let (Some(id), Some(content)) = (&turn.call_id, &turn.content) {
                    self.results.insert(id.clone(), content.clone());
                }
            }
        }
        if let Some(uuid) = uuid {
            self.by_uuid.insert(uuid.to_owned(), self.lines.len());
        }
        self.lines.push(Line {
            parent,
            location: location.to_owned(),
            message,
            n_children: 0,
        });
        true
    }

    /// Sets the outcome of the session.
    pub(crate) fn set_outcome(&mut self, outcome: f64) {
        self.outcome = Some(outcome);
    }

    /// The conversations, one for each leaf.
    pub(crate) fn finish(self, left_out: &mut Counts) -> impl Iterator<Item = Trace> + use<> {
        let is_end = |line: &Line| {
            let has_sibling = line
                .parent
                .is_some_and(|parent| self.lines[parent].n_children > 1);
            line.n_children == 0 && !(has_sibling && line.is_only_results())
        };
        let mut ends: Vec<usize> = (0..self.lines.len())
            .filter(|&idx| is_end(&self.lines[idx]))
            .collect();
        for &end in ends.iter().skip(SESSION_BRANCHES) {
            left_out.add(MANY_BRANCHES, &self.lines[end].location);
        }
        ends.truncate(SESSION_BRANCHES);
        ends.into_iter().map(move |end| self.conversation(end))
    }

    /// The conversation on the path from the root to a line.
    fn conversation(&self, end: usize) -> Trace {
        let mut path = vec![end];
        while let Some(parent) = self.lines[path[path.len() - 1]].parent {
            path.push(parent);
        }
        let mut trace = Trace::new(TraceSource::ClaudeCode, &self.lines[end].location);
        trace.outcome = self.outcome;
        // The position of the last answer, by its id.
        let mut answer: Option<(String, usize)> = None;
        let mut on_path: HashSet<&str> = HashSet::new();
        for &idx in path.iter().rev() {
            let Some(Message { id, turns }) = &self.lines[idx].message else {
                continue;
            };
            let Ok(turns) = turns else {
                trace.push(turns.clone());
                break;
            };
            for turn in turns {
                if let (Role::Tool, Some(id)) = (turn.role, turn.call_id.as_deref())
                    && !on_path.insert(id)
                {
                    continue;
                }
                match (&answer, id) {
                    (Some((last, position)), Some(id))
                        if last == id && turn.role == Role::Assistant =>
                    {
                        join_answer(&mut trace.turns[*position], turn.clone());
                    }
                    _ => {
                        if let (Role::Assistant, Some(id)) = (turn.role, id) {
                            answer = Some((id.clone(), trace.turns.len()));
                        }
                        trace.push(Ok(vec![turn.clone()]));
                    }
                }
            }
        }
        fill_results(&mut trace.turns, &self.results);
        trace
    }
}

/// The message of a line; `None` for lines of other types, and for errors that the program shows as
/// answers.
fn message(entry: &Value) -> Option<Message> {
    let kind = entry.get("type").and_then(Value::as_str)?;
    let role = match kind {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        _ => return None,
    };
    let message = entry.get("message")?.as_object()?;
    let model = message.get("model").and_then(Value::as_str);
    let is_error = entry.get("isApiErrorMessage") == Some(&Value::Bool(true));
    if is_error || model == Some("<synthetic>") {
        return None;
    }
    let id = message.get("id").and_then(Value::as_str).map(str::to_owned);
    Some(Message {
        id: id.filter(|_| role == Role::Assistant),
        turns: chat::turns_of(message, role),
    })
}
