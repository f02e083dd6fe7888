//! What a template leaves out of a conversation without a word.
//!
//! Nothing is searched in the text: a template may move, trim, quote or number what it is given.
//! The conversation is changed where the question is and rendered again, and if the text is the
//! same, the model would never read what was changed.

use super::values::MessageWriter;
use super::{ChatTemplate, GenerationPrompt};
use crate::text::conversation::Conversation;
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
        if is_given(&conversation.tools) {
            let without = Conversation {
                tools: None,
                ..conversation.clone()
            };
            if self.is_same_text(&without, text) {
                return Err(DataError::ToolsNotRendered);
            }
        }
        if is_given(&conversation.documents) {
            let without = Conversation {
                documents: None,
                ..conversation.clone()
            };
            if self.is_same_text(&without, text) {
                return Err(DataError::DocumentsNotRendered);
            }
        }
        Ok(())
    }

    /// Whether a changed conversation has the text of the unchanged one; one that the template
    /// refuses has another.
    fn is_same_text(&self, changed: &Conversation, text: &str) -> bool {
        let messages = MessageWriter::plain().messages(&changed.messages);
        self.execute(changed, messages, GenerationPrompt::Omit)
            .is_ok_and(|other| other == text)
    }
}
