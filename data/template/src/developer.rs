//! The role `developer`, which few templates support.
//!
//! Support is tested by rendering: a template supports the role if it renders such a message, and
//! renders it differently from a message with an unknown role. A template that prints any role name
//! would show the model an unfamiliar word, and other templates drop the message. In both cases the
//! message is rendered with the role `system`, the former name of `developer`.

use std::borrow::Cow;

use minijinja::Value;

use super::values::MessageValues;
use super::{ChatTemplate, GenerationPrompt};
use crate::conversation::{Conversation, Message, Role};

/// A role that no template supports; below it, strings that no template writes.
const UNKNOWN_ROLE: &str = "qvxzk";
const INSTRUCTION: &str = "zqvinstructionkx";
const QUESTION: &str = "zqvquestionkx";

impl ChatTemplate {
    /// Whether the template supports the role `developer`; otherwise such messages are rendered
    /// with the role `system`.
    pub fn knows_developer(&self) -> bool {
        *self.knows_developer.get_or_init(|| {
            let Some(text) = self.first_message_of(Role::Developer.as_str()) else {
                return false;
            };
            let with_unknown_role = self.first_message_of(UNKNOWN_ROLE);
            let is_printed = with_unknown_role
                .is_some_and(|other| other.replace(UNKNOWN_ROLE, Role::Developer.as_str()) == text);
            text.contains(INSTRUCTION) && !is_printed
        })
    }

    /// Renders a conversation that begins with a message of this role; `None` if the template
    /// refuses it.
    fn first_message_of(&self, role: &str) -> Option<String> {
        let message = |role: &str, content: &str| {
            Value::from_pairs([
                ("role", Value::from(role)),
                ("content", Value::from(content)),
            ])
        };
        let messages = vec![
            message(role, INSTRUCTION),
            message(Role::User.as_str(), QUESTION),
        ];
        let without_tools = Conversation::new(vec![Message::new(Role::User, QUESTION)]);
        let message_values = MessageValues {
            messages: Value::from(messages),
            generation_marks: ["", ""],
        };
        self.execute(&without_tools, message_values, GenerationPrompt::Omit)
            .ok()
    }

    /// Replaces roles that the template does not support.
    pub(super) fn with_known_roles<'c>(&self, original: &'c Conversation) -> Cow<'c, Conversation> {
        let is_developer = |message: &Message| message.role == Role::Developer;
        if !original.messages.iter().any(is_developer) || self.knows_developer() {
            return Cow::Borrowed(original);
        }
        let mut conversation = original.clone();
        for message in &mut conversation.messages {
            if is_developer(message) {
                message.role = Role::System;
            }
        }
        Cow::Owned(conversation)
    }
}
