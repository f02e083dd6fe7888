//! The system message of a conversation, and a template's default system message.

use crate::{ChatTemplate, Conversation, GenerationPrompt, Message, Role};

/// A string that no template writes.
const MARK: &str = "zqvsystemkx";

impl Conversation {
    /// The system or developer message at the start of the conversation.
    pub fn system(&self) -> Option<&str> {
        let first = self.messages.first()?;
        let is_system = matches!(first.role, Role::System | Role::Developer);
        let text = first.content.as_deref().unwrap_or_default();
        is_system.then_some(text)
    }

    /// Inserts this system message at the start, unless the conversation already starts with one.
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
    /// Returns the default system message that the template writes for a conversation without one.
    ///
    /// The position of the default is found by rendering a conversation with a system message. If
    /// the template fails on such a message or prints it in another position, it has no default.
    pub fn default_system(&self, conversation: &Conversation) -> Option<String> {
        let render = |conversation: &Conversation| {
            let text = self.render(conversation, GenerationPrompt::Omit);
            text.ok()
        };
        let with_mark = render(&conversation.clone().with_system(MARK))?;
        let (before, after) = with_mark.split_once(MARK)?;
        let without = render(conversation)?;
        let default_text = without.strip_prefix(before)?.strip_suffix(after)?;
        (!default_text.trim().is_empty()).then(|| default_text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SpecialTokens;

    fn default_system(source: &str) -> Option<String> {
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
    fn the_default_system_message_of_a_template_is_found() {
        let smollm2_default =
            "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
        assert_eq!(
            default_system(&fixture("smollm2")).as_deref(),
            Some(smollm2_default)
        );
        let qwen_default = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
        assert_eq!(
            default_system(&fixture("qwen2_5")).as_deref(),
            Some(qwen_default)
        );
        for name in ["qwen3", "llama2", "llama3_1", "mistral_v3"] {
            assert_eq!(default_system(&fixture(name)), None, "{name}");
        }
        let built_in = ChatTemplate::built_in("chatml-tools").unwrap();
        assert_eq!(default_system(built_in), None);
        let refuses = "{% for m in messages %}{% if m.role == 'system' %}\
                       {{ raise_exception('none') }}{% endif %}{{ m.content }}{% endfor %}";
        assert_eq!(default_system(refuses), None);
    }

    #[test]
    fn conversations_without_a_system_message_get_the_default() {
        let question = || Message::new(Role::User, "Hi");
        let with_system = Conversation::new(vec![question()]).with_system("Be brief.");
        assert_eq!(with_system.system(), Some("Be brief."));
        assert_eq!(with_system.messages.len(), 2);
        let developer = Message::new(Role::Developer, "Be long.");
        let with_developer_message = Conversation::new(vec![developer, question()]);
        assert_eq!(
            with_developer_message.clone().with_system("Be brief."),
            with_developer_message
        );
        // An empty message suppresses the template's default.
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
