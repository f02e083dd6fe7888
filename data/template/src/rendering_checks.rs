//! Detects parts of a conversation that a template silently leaves out.
//!
//! Searching the text would not work, because a template may move, trim, quote or number its input.
//! Instead, the part in question is changed and the conversation rendered again. If the text is the
//! same, the model would never see that part.

use serde_json::{Map, json};

use super::budget::is_row_budget_spent;
use super::values::MessageWriter;
use super::{ChatTemplate, GenerationPrompt, Replacement};
use crate::conversation::{Conversation, Message, Role, ToolCall};
use crate::error::TemplateError;

impl ChatTemplate {
    /// Rejects tools and documents that leave no trace in `text`, the rendering of the whole
    /// conversation.
    ///
    /// Every row is checked, because a template may render these lists conditionally.
    pub(super) fn check_lists_rendered(
        &self,
        conversation: &Conversation,
        text: &str,
    ) -> Result<(), TemplateError> {
        let is_non_empty =
            |list: &Option<Vec<_>>| list.as_ref().is_some_and(|items| !items.is_empty());
        let is_same_without = |remove: fn(&mut Conversation)| {
            let mut reduced = conversation.clone();
            remove(&mut reduced);
            self.is_same_text(&reduced, text)
        };
        if is_non_empty(&conversation.tools) && is_same_without(|c| c.tools = None) {
            let instead = Replacement::for_template(self.source());
            return Err(TemplateError::ToolsNotRendered { instead });
        }
        if is_non_empty(&conversation.documents) && is_same_without(|c| c.documents = None) {
            return Err(TemplateError::DocumentsNotRendered);
        }
        Ok(())
    }

    /// Rejects tools and documents that leave no trace in the rendering of a prompt without its
    /// answer.
    pub fn check_lists_in_prompt(&self, conversation: &Conversation) -> Result<(), TemplateError> {
        if conversation.tools.is_none() && conversation.documents.is_none() {
            return Ok(());
        }
        let mut prompt = conversation.clone();
        prompt.messages.truncate(conversation.prompt().len());
        let prompt = &*self.with_known_roles(&prompt);
        let messages = MessageWriter::without_marks().messages(&prompt.messages);
        // A template may fail on a conversation without its last question. This is not reported.
        match self.execute(prompt, messages, GenerationPrompt::Omit) {
            Ok(text) => self.check_lists_rendered(prompt, &text),
            Err(_) => Ok(()),
        }
    }

    /// Rejects system, user and tool messages whose whole content is missing from `text`.
    ///
    /// `is_found` is true for messages whose marks were found. The other messages are changed and
    /// rendered again, because some templates parse a tool result as a number, which removes marks.
    pub(super) fn check_prompt_messages_rendered(
        &self,
        conversation: &Conversation,
        text: &str,
        is_found: &[bool],
    ) -> Result<(), TemplateError> {
        for (message, is_found) in is_found.iter().enumerate() {
            let Message { role, content, .. } = &conversation.messages[message];
            let content = content.as_deref().map_or("", str::trim);
            if *is_found || *role == Role::Assistant || content.is_empty() {
                continue;
            }
            if is_row_budget_spent() {
                break;
            }
            let mut changed = conversation.clone();
            // Use one repeated digit: any part of a content that the template extracts then
            // changes, or the rendering fails.
            let other = if content == "0" { "1" } else { "0" };
            changed.messages[message].content = Some(other.to_owned());
            if self.is_same_text(&changed, text) {
                return Err(TemplateError::PromptMessageNotRendered {
                    message,
                    role: role.as_str(),
                });
            }
        }
        Ok(())
    }

    /// Rejects tool calls in any message whose name or arguments are missing from `text`.
    ///
    /// `is_found` is true for messages for which the marks of all call parts were found. The calls
    /// of the other messages are changed and rendered again, because some templates compute with
    /// arguments, which removes marks.
    pub(super) fn check_calls_rendered(
        &self,
        conversation: &Conversation,
        text: &str,
        is_found: impl Fn(usize) -> bool,
    ) -> Result<(), TemplateError> {
        for (message, given) in conversation.messages.iter().enumerate() {
            if given.tool_calls.is_empty() || is_found(message) {
                continue;
            }
            if is_row_budget_spent() {
                break;
            }
            for (call, given) in given.tool_calls.iter().enumerate() {
                let is_same_with = |change: fn(&mut ToolCall)| {
                    let mut changed = conversation.clone();
                    change(&mut changed.messages[message].tool_calls[call]);
                    self.is_same_text(&changed, text)
                };
                let lacks_name = is_same_with(rename);
                // Change the arguments twice, because one change is invisible if the template
                // skips nulls or keys.
                let lacks_arguments = !given.arguments.is_empty()
                    && is_same_with(|call| call.arguments.clear())
                    && is_same_with(replace_arguments);
                let part = match (lacks_name, lacks_arguments) {
                    (false, false) => continue,
                    (true, false) if !given.arguments.is_empty() => "the name of ",
                    (false, true) => "the arguments of ",
                    (true, _) => "",
                };
                return Err(TemplateError::CallNotRendered {
                    message,
                    call,
                    part,
                    instead: Replacement::for_template(self.source()),
                });
            }
        }
        Ok(())
    }

    /// If a message has only calls and the template does not support calls, the template reads the
    /// missing content and fails. Replaces such an error by its cause.
    pub(super) fn explain_failure(
        &self,
        conversation: &Conversation,
        n_messages: usize,
        error: TemplateError,
    ) -> TemplateError {
        let (line, reason) = match &error {
            TemplateError::TemplateFailed { line, reason } => (*line, reason.clone()),
            TemplateError::NonStringOutput { line, kind } => (*line, format!("it prints {kind}")),
            TemplateError::TemplateRaised { message } if self.is_without_tools(conversation) => {
                return TemplateError::TemplateRaisedAtTools {
                    message: message.clone(),
                    instead: Replacement::for_template(self.source()),
                };
            }
            _ => return error,
        };
        let has_only_calls =
            |message: &Message| message.content.is_none() && !message.tool_calls.is_empty();
        let messages = &conversation.messages[..n_messages];
        let Some(message) = messages.iter().position(has_only_calls) else {
            return error;
        };
        let mut with_calls = messages.to_vec();
        for message in with_calls.iter_mut().filter(|m| has_only_calls(m)) {
            message.content = Some(String::new());
        }
        let mut without_calls = with_calls.clone();
        without_calls[message].tool_calls.clear();
        let render = |messages: &[Message]| {
            let messages = MessageWriter::without_marks().messages(messages);
            self.execute(conversation, messages, GenerationPrompt::Omit)
                .ok()
        };
        match (render(&with_calls), render(&without_calls)) {
            (Some(with), Some(without)) if with == without => TemplateError::ToolCallsNotRendered {
                message,
                line,
                reason,
                instead: Replacement::for_template(self.source()),
            },
            _ => error,
        }
    }

    /// Whether the conversation has tools but the template never mentions tools.
    fn is_without_tools(&self, conversation: &Conversation) -> bool {
        let has_tools =
            |message: &Message| message.role == Role::Tool || !message.tool_calls.is_empty();
        let has_row_tools = conversation
            .tools
            .as_ref()
            .is_some_and(|tools| !tools.is_empty());
        (has_row_tools || conversation.messages.iter().any(has_tools))
            && !self.source().contains("tool")
    }

    /// Whether a changed conversation renders to the same text; false if the template refuses it.
    pub(super) fn is_same_text(&self, changed: &Conversation, text: &str) -> bool {
        let messages = MessageWriter::without_marks().messages(&changed.messages);
        self.execute(changed, messages, GenerationPrompt::Omit)
            .is_ok_and(|other| other == text)
    }
}

fn rename(call: &mut ToolCall) {
    let other = if call.name == "f" { "g" } else { "f" };
    call.name = other.to_owned();
}

fn replace_arguments(call: &mut ToolCall) {
    let n_given = call.arguments.len();
    call.arguments = Map::from_iter([("0".to_owned(), json!(n_given.to_string()))]);
}
