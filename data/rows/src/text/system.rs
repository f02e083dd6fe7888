//! Where the system message of a row comes from: the row, a setting, or the chat template.

use serde::Serialize;

use super::conversation::{Conversation, Message, Role};
use super::template::{ChatTemplate, GenerationPrompt};

/// A text that no template writes by itself.
const MARK: &str = "zqvsystemkx";

/// Who gives the system message of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum SystemSource {
    /// The row.
    #[serde(rename = "row")]
    Row,
    /// The setting for rows without one.
    #[serde(rename = "data.system")]
    Setting,
    /// The chat template, where the messages begin with none.
    #[serde(rename = "template")]
    Template,
}

/// The system message of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InspectedSystem {
    /// Who gives it.
    pub from: SystemSource,
    /// What it says.
    pub text: String,
}

impl InspectedSystem {
    /// That which the template writes of a conversation, if it does.
    pub(super) fn of(conversation: &Conversation, template: &ChatTemplate) -> Option<Self> {
        match conversation.system() {
            Some(text) => Some(Self {
                from: SystemSource::Row,
                text: text.to_owned(),
            }),
            None => template.default_system(conversation).map(|text| Self {
                from: SystemSource::Template,
                text,
            }),
        }
    }
}

impl Conversation {
    /// The message of the system, or of the developer, that the conversation begins with.
    pub fn system(&self) -> Option<&str> {
        let first = self.messages.first()?;
        let is_system = matches!(first.role, Role::System | Role::Developer);
        let text = first.content.as_deref().unwrap_or_default();
        is_system.then_some(text)
    }

    /// The conversation with this message of the system before it, unless it begins with one.
    #[must_use]
    pub fn with_system(mut self, text: &str) -> Self {
        if self.system().is_none() {
            self.messages.insert(0, Message::new(Role::System, text));
            self.completion_start += 1;
        }
        self
    }
}

impl ChatTemplate {
    /// What the template writes in the place of a system message where the conversation has none.
    ///
    /// That place is found by a conversation that has one. A template that fails on such a message,
    /// or prints it elsewhere, has no text of its own there.
    pub fn default_system(&self, conversation: &Conversation) -> Option<String> {
        let render = |conversation: &Conversation| {
            let text = self.render(conversation, GenerationPrompt::Omit);
            text.ok()
        };
        let given = render(&conversation.clone().with_system(MARK))?;
        let (before, after) = given.split_once(MARK)?;
        let without = render(conversation)?;
        let own = without.strip_prefix(before)?.strip_suffix(after)?;
        (!own.trim().is_empty()).then(|| own.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::SpecialTokens;

    fn own_text(source: &str) -> Option<String> {
        let template = ChatTemplate::new(source, SpecialTokens::default()).unwrap();
        let conversation = Conversation::new(vec![
            Message::new(Role::User, "Hi"),
            Message::new(Role::Assistant, "Hello."),
        ]);
        template.default_system(&conversation)
    }

    fn fixture(name: &str) -> String {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures");
        let path = format!("{folder}/chat_templates/templates/{name}.jinja");
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_template_says_what_it_writes_in_the_place_of_a_system_message() {
        let of_smollm2 = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
        assert_eq!(own_text(&fixture("smollm2")).as_deref(), Some(of_smollm2));
        let of_qwen = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
        assert_eq!(own_text(&fixture("qwen2_5")).as_deref(), Some(of_qwen));
        for name in ["qwen3", "llama2", "llama3_1", "mistral_v3"] {
            assert_eq!(own_text(&fixture(name)), None, "{name}");
        }
        let built_in = ChatTemplate::built_in("chatml-tools").unwrap();
        assert_eq!(own_text(built_in), None);
        let refuses = "{% for m in messages %}{% if m.role == 'system' %}\
                       {{ raise_exception('none') }}{% endif %}{{ m.content }}{% endfor %}";
        assert_eq!(own_text(refuses), None);
    }

    #[test]
    fn a_system_message_is_given_to_conversations_without_one() {
        let question = || Message::new(Role::User, "Hi");
        let given = Conversation::new(vec![question()]).with_system("Be brief.");
        assert_eq!(given.system(), Some("Be brief."));
        assert_eq!(given.messages.len(), 2);
        let developer = Message::new(Role::Developer, "Be long.");
        let own = Conversation::new(vec![developer, question()]);
        assert_eq!(own.clone().with_system("Be brief."), own);
        // An empty one keeps the template's own away.
        let empty = Conversation::new(vec![question()]).with_system("");
        assert_eq!(empty.system(), Some(""));
        let answer = Message::new(Role::Assistant, "Hello.");
        let row = Conversation {
            completion_start: 1,
            ..Conversation::new(vec![question(), answer])
        };
        assert_eq!(row.with_system("Be brief.").prompt().len(), 2);
    }
}
