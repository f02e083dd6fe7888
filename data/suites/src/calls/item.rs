//! The turns of a row that a model is asked for, each after the gold history before it.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tooltune_rows::text::{Conversation, Message, Role, Row};

use super::answer::{CallsAnswer, WrittenCall};
use super::read::read_calls;
use super::tools::ToolSet;

/// Which turns of rows are asked, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AskedTurns {
    /// Which turns of the assistant.
    pub which: WhichTurns,
    /// The most turns of one row; later ones are left out and counted.
    pub max_turns_per_row: usize,
}

/// Which turns of the assistant are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhichTurns {
    /// All.
    #[default]
    All,
    /// Those of the completion: the answer of a row of prompt and completion, the last turn of a
    /// conversation.
    Completion,
}

impl Default for AskedTurns {
    fn default() -> Self {
        Self {
            which: WhichTurns::default(),
            max_turns_per_row: 64,
        }
    }
}

/// A turn of the assistant that a model is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct CallsItem {
    /// The row and the position of the turn in it, such as `dev.jsonl:3#2`; unique in its set.
    pub id: String,
    /// Position of the turn among the messages of its row.
    pub message: usize,
    /// The calls that are wanted; none where the turn is a text.
    pub gold: Vec<WrittenCall>,
    /// The tools of the row, nested as they are in the file.
    pub tools: Arc<ToolSet>,
}

/// Turns of the assistant that are not asked, by the reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SkippedTurns {
    /// The row has no tools, so that there is nothing to call.
    pub n_without_tools: usize,
    /// The data switches the turn off.
    pub n_switched_off: usize,
    /// The row has more turns than are asked of one.
    pub n_over_budget: usize,
    /// The turn holds calls as text that cannot be read, by its id with the reason.
    pub unreadable: Vec<String>,
}

impl SkippedTurns {
    /// A sentence for each reason that there is.
    pub fn lines(&self) -> Vec<String> {
        let are = |n: usize| if n == 1 { "turn is" } else { "turns are" };
        let counted =
            |n: usize, why: &str| (n > 0).then(|| format!("{n} {} not asked: {why}", are(n)));
        let first = self.unreadable.first();
        [
            counted(self.n_without_tools, "no tools in the row"),
            counted(self.n_switched_off, "switched off by the data"),
            counted(
                self.n_over_budget,
                "more turns in the row than are asked of one",
            ),
            first.map(|first| {
                let n = self.unreadable.len();
                format!(
                    "{n} {} not asked: calls that cannot be read, such as {first}",
                    are(n)
                )
            }),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

impl CallsItem {
    /// The messages before the turn: the row's own, whatever a model answered to them.
    pub fn history(&self) -> Range<usize> {
        0..self.message
    }

    /// What is asked: the history with the tools, of the row's conversation or of its flat form,
    /// which has the same messages.
    pub fn prompt(&self, conversation: &Conversation) -> Conversation {
        let messages: Vec<Message> = conversation.messages[self.history()].to_vec();
        Conversation {
            completion_start: messages.len(),
            messages,
            tools: conversation.tools.clone(),
            documents: conversation.documents.clone(),
        }
    }

    /// The gold as an answer, which [`CallsScorer`](super::CallsScorer) scores as any other.
    pub fn gold_answer(&self) -> CallsAnswer {
        CallsAnswer::of_calls(self.gold.clone())
    }
}

/// The turns of a row that are asked; those that are not are counted in `skipped`.
///
/// A turn of text is asked, too: where tools are on offer, not to call is an answer. Calls that a
/// message holds as text count as its calls.
pub fn calls_items(row: &Row, asked: AskedTurns, skipped: &mut SkippedTurns) -> Vec<CallsItem> {
    let conversation = &row.conversation;
    let start = match asked.which {
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
        if items.len() == asked.max_turns_per_row {
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
    let written = read_calls(message.content.as_deref().unwrap_or_default(), tools);
    match written.malformed.into_iter().next() {
        Some(reason) => Err(reason),
        None => Ok(written.calls),
    }
}
