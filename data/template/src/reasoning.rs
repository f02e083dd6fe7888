//! Whether a template renders the reasoning of assistant messages.
//!
//! Templates keep all reasoning, only the reasoning after the last question (Qwen3), or none
//! (Qwen2.5, Llama 3). As in `rendering_checks`, the text is not searched. Instead, the reasoning
//! is changed and the conversation rendered again.

use serde_json::{Value, json};

use super::ChatTemplate;
use super::budget::is_row_budget_spent;
use crate::conversation::{Conversation, Message, Role};
use crate::message_fields::REASONING;

/// The tag that ends a thought at the start of a content.
const END_OF_THOUGHT: &str = "</think>";

impl ChatTemplate {
    /// Returns the assistant messages whose reasoning is completely missing from `text`, the
    /// rendering of the whole conversation. Reasoning is in a field, or between `<think>` and
    /// `</think>` in the content.
    pub(super) fn without_reasoning(&self, conversation: &Conversation, text: &str) -> Vec<usize> {
        let is_left_out = |message: usize| {
            let changes = [change_field, change_thought];
            if is_row_budget_spent() {
                return false;
            }
            changes.into_iter().any(|change| {
                let mut changed = conversation.clone();
                change(&mut changed.messages[message]) && self.is_same_text(&changed, text)
            })
        };
        (0..conversation.messages.len())
            .filter(|&message| conversation.messages[message].role == Role::Assistant)
            .filter(|&message| is_left_out(message))
            .collect()
    }
}

/// Replaces the reasoning field of a message; returns false if the message has none.
fn change_field(message: &mut Message) -> bool {
    let mut is_changed = false;
    for name in REASONING {
        let Some(value) = message.extra.get_mut(name) else {
            continue;
        };
        let is_empty = match &*value {
            Value::Null => true,
            Value::String(text) => text.trim().is_empty(),
            Value::Array(items) => items.is_empty(),
            _ => false,
        };
        if !is_empty {
            let other = different_text(value.as_str().unwrap_or_default());
            *value = json!(other);
            is_changed = true;
        }
    }
    is_changed
}

/// Replaces the thought at the start of a message's content; returns false if there is none.
fn change_thought(message: &mut Message) -> bool {
    let Some((before, after)) = message
        .content
        .as_deref()
        .and_then(|content| content.split_once(END_OF_THOUGHT))
    else {
        return false;
    };
    let start = before.rfind("<think>").map_or(0, |at| at + "<think>".len());
    let (open, thought) = before.split_at(start);
    if thought.trim().is_empty() {
        return false;
    }
    message.content = Some(format!(
        "{open}{}{END_OF_THOUGHT}{after}",
        different_text(thought)
    ));
    true
}

/// Returns a string that differs from another in every part that a template could extract.
fn different_text(text: &str) -> &'static str {
    match text.trim() {
        "0" => "1",
        _ => "0",
    }
}
