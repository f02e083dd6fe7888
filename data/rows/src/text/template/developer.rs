//! The role `developer`, which few templates know.
//!
//! The template itself is asked: it knows the role if it writes such a message, and writes it in
//! another way than one of a role that nobody knows. Templates that print whatever role they get
//! would show the model a word that it has never read, and others drop the message; both get
//! `system` in its place, which is what `developer` was called before.

use std::borrow::Cow;

use minijinja::Value;

use super::values::MessageValues;
use super::{ChatTemplate, GenerationPrompt};
use crate::text::conversation::{Conversation, Message, Role};

/// A role that no template knows, and texts that none writes by itself.
const NOBODY: &str = "qvxzk";
const INSTRUCTION: &str = "zqvinstructionkx";
const QUESTION: &str = "zqvquestionkx";

impl ChatTemplate {
    /// Whether the template has words of its own for the role `developer`; where it has none, such
    /// messages are rendered as those of `system`.
    pub fn knows_developer(&self) -> bool {
        *self.knows_developer.get_or_init(|| {
            let Some(text) = self.first_message_of(Role::Developer.as_str()) else {
                return false;
            };
            let of_nobody = self.first_message_of(NOBODY);
            let is_printed = of_nobody
                .is_some_and(|other| other.replace(NOBODY, Role::Developer.as_str()) == text);
            text.contains(INSTRUCTION) && !is_printed
        })
    }

    /// A conversation that a message of this role begins; `None` if the template refuses it.
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
        let nothing = Conversation::new(vec![Message::new(Role::User, QUESTION)]);
        let given = MessageValues {
            messages: Value::from(messages),
            generation_marks: ["", ""],
        };
        self.execute(&nothing, given, GenerationPrompt::Omit).ok()
    }

    /// The conversation with roles that the template knows.
    pub(super) fn with_known_roles<'c>(&self, given: &'c Conversation) -> Cow<'c, Conversation> {
        let is_developer = |message: &Message| message.role == Role::Developer;
        if !given.messages.iter().any(is_developer) || self.knows_developer() {
            return Cow::Borrowed(given);
        }
        let mut conversation = given.clone();
        for message in &mut conversation.messages {
            if is_developer(message) {
                message.role = Role::System;
            }
        }
        Cow::Owned(conversation)
    }
}
