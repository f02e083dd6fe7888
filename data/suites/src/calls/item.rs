//! Selects the assistant turns that a model must produce, each with the original history before it.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tooltune_rows::text::Row;
use tooltune_template::{Conversation, Message, Role};

use super::answer::{CallsAnswer, WrittenCall};
use super::read::read_calls;
use super::tools::ToolSet;

/// Which turns of a row the model must produce, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TurnSelection {
    /// Selects among the assistant turns.
    pub which: WhichTurns,
    /// Maximum number of turns per row; later turns are skipped and counted.
    pub max_turns_per_row: usize,
}

/// Which assistant turns the model must produce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhichTurns {
    /// All turns.
    #[default]
    All,
    /// Only the completion: the answer of a prompt-completion row, or the last turn of a
    /// conversation.
    Completion,
}

impl Default for TurnSelection {
    fn default() -> Self {
        Self {
            which: WhichTurns::default(),
            max_turns_per_row: 64,
        }
    }
}

/// An assistant turn that the model must produce.
#[derive(Debug, Clone, PartialEq)]
pub struct CallsItem {
    /// Row and message index of the turn, such as `dev.jsonl:3#2`; unique in its set.
    pub id: String,
    /// Index of the turn among the row's messages.
    pub message: usize,
    /// The expected calls; empty if the turn is text.
    pub gold: Vec<WrittenCall>,
    /// The tools of the row, nested as in the file.
    pub tools: Arc<ToolSet>,
}

/// Skipped assistant turns, by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SkippedTurns {
    /// The row has no tools to call.
    pub n_without_tools: usize,
    /// The data disables the turn.
    pub n_switched_off: usize,
    /// The row has more turns than the limit.
    pub n_over_budget: usize,
    /// Turns with calls as text that cannot be parsed: ids and reasons.
    pub unreadable: Vec<String>,
}

impl SkippedTurns {
    /// One sentence for each reason that occurred.
    pub fn lines(&self) -> Vec<String> {
        let turns = |n: usize| if n == 1 { "turn" } else { "turns" };
        let n_skipped_lines =
            |n: usize, why: &str| (n > 0).then(|| format!("{n} {} skipped: {why}", turns(n)));
        let first_unreadable = self.unreadable.first();
        [
            n_skipped_lines(self.n_without_tools, "the row has no tools"),
            n_skipped_lines(self.n_switched_off, "disabled by the data"),
            n_skipped_lines(
                self.n_over_budget,
                "the row has more turns than max_turns_per_row",
            ),
            first_unreadable.map(|first_unreadable| {
                let n = self.unreadable.len();
                format!(
                    "{n} {} skipped: calls cannot be parsed, for example {first_unreadable}",
                    turns(n)
                )
            }),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

impl CallsItem {
    /// The messages before the turn, always as in the row, regardless of the model's earlier
    /// answers.
    pub fn history(&self) -> Range<usize> {
        0..self.message
    }

    /// The prompt: the history and the tools. `conversation` is the row's conversation or its flat
    /// form, which has the same messages.
    pub fn prompt(&self, conversation: &Conversation) -> Conversation {
        let messages: Vec<Message> = conversation.messages[self.history()].to_vec();
        Conversation {
            completion_start: messages.len(),
            messages,
            tools: conversation.tools.clone(),
            documents: conversation.documents.clone(),
        }
    }

    /// The gold answer, which [`CallsScorer`](super::CallsScorer) scores like any other answer.
    pub fn gold_answer(&self) -> CallsAnswer {
        CallsAnswer::from_calls(self.gold.clone())
    }
}

/// The turns of a row that the model must produce; skipped turns are counted in `skipped`.
///
/// Text turns are included, because the correct answer may be to call none of the available tools.
/// Calls that a message contains as text count as calls.
pub fn calls_items(
    row: &Row,
    which_turns: TurnSelection,
    skipped: &mut SkippedTurns,
) -> Vec<CallsItem> {
    let conversation = &row.conversation;
    let start = match which_turns.which {
        WhichTurns::All => 0,
        WhichTurns::Completion => conversation.completion_start,
    };
    let turns = conversation.messages.iter().enumerate().skip(start);
    let turns = turns.filter(|(_, message)| message.role == Role::Assistant);
    let Some(tools) = conversation
        .tools
        .as_deref()
        .filter(|tools| !tools.is_empty())
    else {
        skipped.n_without_tools += turns.count();
        return Vec::new();
    };
    let tools = Arc::new(ToolSet::new(tools));
    let mut items = Vec::new();
    for (message_idx, message) in turns {
        if message.is_switched_off() {
            skipped.n_switched_off += 1;
            continue;
        }
        if items.len() == which_turns.max_turns_per_row {
            skipped.n_over_budget += 1;
            continue;
        }
        let id = format!("{}#{message_idx}", row.id);
        match gold_calls(message, &tools) {
            Ok(gold) => items.push(CallsItem {
                id,
                message: message_idx,
                gold,
                tools: Arc::clone(&tools),
            }),
            Err(reason) => skipped.unreadable.push(format!("{id} ({reason})")),
        }
    }
    items
}

fn gold_calls(message: &Message, tools: &ToolSet) -> Result<Vec<WrittenCall>, String> {
    if !message.tool_calls.is_empty() {
        return Ok(message.tool_calls.iter().map(WrittenCall::from).collect());
    }
    let parsed = read_calls(message.content.as_deref().unwrap_or_default(), tools);
    match parsed.malformed.into_iter().next() {
        Some(reason) => Err(reason),
        None => Ok(parsed.calls),
    }
}
