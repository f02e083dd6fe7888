//! What a template leaves out of a conversation without a word.
//!
//! Nothing is searched in the text: a template may move, trim, quote or number what it is given.
//! The conversation is changed where the question is and rendered again, and if the text is the
//! same, the model would never read what was changed.

use serde_json::{Map, json};

use super::budget::row_is_spent;
use super::values::MessageWriter;
use super::{ChatTemplate, GenerationPrompt};
use crate::text::conversation::{Conversation, Message, Role, ToolCall};
use crate::text::error::DataError;

impl ChatTemplate {
    /// Refuses tools and documents that leave no trace in `text`, the rendering of the whole
    /// conversation.
    ///
    /// Every row is asked anew, because a template may show them under conditions only.
    pub(super) fn must_render_lists(
        &self,
        conversation: &Conversation,
        text: &str,
    ) -> Result<(), DataError> {
        let is_given = |list: &Option<Vec<_>>| list.as_ref().is_some_and(|items| !items.is_empty());
        let is_same_without = |take_out: fn(&mut Conversation)| {
            let mut without = conversation.clone();
            take_out(&mut without);
            self.is_same_text(&without, text)
        };
        if is_given(&conversation.tools) && is_same_without(|c| c.tools = None) {
            return Err(DataError::ToolsNotRendered);
        }
        if is_given(&conversation.documents) && is_same_without(|c| c.documents = None) {
            return Err(DataError::DocumentsNotRendered);
        }
        Ok(())
    }

    /// Refuses tools and documents that leave no trace in a prompt, whose answer is not rendered.
    pub(in crate::text) fn must_show_lists(
        &self,
        conversation: &Conversation,
    ) -> Result<(), DataError> {
        if conversation.tools.is_none() && conversation.documents.is_none() {
            return Ok(());
        }
        let mut asked = conversation.clone();
        asked.messages.truncate(conversation.prompt().len());
        let asked = &*self.with_known_roles(&asked);
        let messages = MessageWriter::plain().messages(&asked.messages);
        // What the template says of a conversation without its last question is no fault of it.
        match self.execute(asked, messages, GenerationPrompt::Omit) {
            Ok(text) => self.must_render_lists(asked, &text),
            Err(_) => Ok(()),
        }
    }

    /// Refuses system, user and tool messages of whose content nothing reaches `text`.
    ///
    /// `is_found` says of which messages something was found by its marks. The others are changed:
    /// some templates read the result of a tool as a number, and no mark survives that.
    pub(super) fn must_render_prompt_messages(
        &self,
        conversation: &Conversation,
        text: &str,
        is_found: &[bool],
    ) -> Result<(), DataError> {
        for (message, is_found) in is_found.iter().enumerate() {
            let Message { role, content, .. } = &conversation.messages[message];
            let content = content.as_deref().map_or("", str::trim);
            if *is_found || *role == Role::Assistant || content.is_empty() {
                continue;
            }
            if row_is_spent() {
                break;
            }
            let mut changed = conversation.clone();
            // Of one character and a number, so that whatever the template takes of a content is
            // taken of this one, too, or fails.
            let other = if content == "0" { "1" } else { "0" };
            changed.messages[message].content = Some(other.to_owned());
            if self.is_same_text(&changed, text) {
                return Err(DataError::PromptMessageNotRendered {
                    message,
                    role: role.as_str(),
                });
            }
        }
        Ok(())
    }

    /// Refuses tool calls whose name or arguments do not reach `text`, in any message.
    ///
    /// `is_found` says of which messages all parts of the calls were found by their marks. The calls
    /// of others are changed: some templates compute with arguments, and no mark survives that.
    pub(super) fn must_render_calls(
        &self,
        conversation: &Conversation,
        text: &str,
        is_found: impl Fn(usize) -> bool,
    ) -> Result<(), DataError> {
        for (message, given) in conversation.messages.iter().enumerate() {
            if given.tool_calls.is_empty() || is_found(message) {
                continue;
            }
            if row_is_spent() {
                break;
            }
            for (call, given) in given.tool_calls.iter().enumerate() {
                let is_same_with = |change: fn(&mut ToolCall)| {
                    let mut changed = conversation.clone();
                    change(&mut changed.messages[message].tool_calls[call]);
                    self.is_same_text(&changed, text)
                };
                let lacks_name = is_same_with(rename);
                // One change alone could go unseen where the template passes over nulls or keys.
                let lacks_arguments = !given.arguments.is_empty()
                    && is_same_with(|call| call.arguments.clear())
                    && is_same_with(replace_arguments);
                let part = match (lacks_name, lacks_arguments) {
                    (false, false) => continue,
                    (true, false) if !given.arguments.is_empty() => "the name of ",
                    (false, true) => "the arguments of ",
                    (true, _) => "",
                };
                return Err(DataError::CallNotRendered {
                    message,
                    call,
                    part,
                });
            }
        }
        Ok(())
    }

    /// The error of a failed rendering in the words of its cause, where that is a message of calls
    /// alone and the template knows no calls: it reaches for the content, which is not there.
    pub(super) fn explain_failure(
        &self,
        conversation: &Conversation,
        n_messages: usize,
        error: DataError,
    ) -> DataError {
        let (line, reason) = match &error {
            DataError::TemplateFailed { line, reason } => (*line, reason.clone()),
            DataError::NonStringOutput { line, kind } => (*line, format!("it prints {kind}")),
            _ => return error,
        };
        let is_calls_alone =
            |message: &Message| message.content.is_none() && !message.tool_calls.is_empty();
        let messages = &conversation.messages[..n_messages];
        let Some(message) = messages.iter().position(is_calls_alone) else {
            return error;
        };
        let mut with_calls = messages.to_vec();
        for message in with_calls.iter_mut().filter(|m| is_calls_alone(m)) {
            message.content = Some(String::new());
        }
        let mut without_calls = with_calls.clone();
        without_calls[message].tool_calls.clear();
        let render = |messages: &[Message]| {
            let messages = MessageWriter::plain().messages(messages);
            self.execute(conversation, messages, GenerationPrompt::Omit)
                .ok()
        };
        match (render(&with_calls), render(&without_calls)) {
            (Some(with), Some(without)) if with == without => DataError::ToolCallsNotRendered {
                message,
                line,
                reason,
            },
            _ => error,
        }
    }

    /// Whether a changed conversation has the text of the unchanged one; one that the template
    /// refuses has another.
    pub(super) fn is_same_text(&self, changed: &Conversation, text: &str) -> bool {
        let messages = MessageWriter::plain().messages(&changed.messages);
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
