//! Whether a template shows the reasoning of assistant messages.
//!
//! Templates differ in what they keep of it: all, only that after the last question (Qwen3), or
//! nothing (Qwen2.5, Llama 3). As for everything else that may be left out, nothing is searched in
//! the text: the reasoning is changed and the conversation rendered again.

use serde_json::{Value, json};

use super::ChatTemplate;
use super::budget::row_is_spent;
use crate::text::conversation::{Conversation, Message, Role};
use crate::text::message_fields::REASONING;

/// What ends a thought that a content begins with.
const END_OF_THOUGHT: &str = "</think>";

impl ChatTemplate {
    /// Assistant messages with reasoning, in a field of its own or between `<think>` and `</think>`
    /// in the content, of which nothing reaches `text`, the rendering of the whole conversation.
    pub(super) fn without_reasoning(&self, conversation: &Conversation, text: &str) -> Vec<usize> {
        let is_left_out = |message: usize| {
            let changes = [change_field, change_thought];
            if row_is_spent() {
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

/// Gives a message other reasoning; false if it has none in a field of its own.
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
            let other = other_than(value.as_str().unwrap_or_default());
            *value = json!(other);
            is_changed = true;
        }
    }
    is_changed
}

/// Gives a message another thought at the beginning of its content; false if it has none there.
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
        other_than(thought)
    ));
    true
}

/// A text that differs from another in all that a template could take of it.
fn other_than(text: &str) -> &'static str {
    match text.trim() {
        "0" => "1",
        _ => "0",
    }
}
