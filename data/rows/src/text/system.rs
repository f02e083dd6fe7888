//! Origin of a row's system message: the row, a setting, or the chat template.

use serde::Serialize;
use tooltune_template::{ChatTemplate, Conversation};

/// Origin of the system message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum SystemSource {
    /// The row.
    #[serde(rename = "row")]
    Row,
    /// The setting for rows without a system message.
    #[serde(rename = "data.system")]
    Setting,
    /// The chat template's default, used if the messages do not start with a system message.
    #[serde(rename = "template")]
    Template,
}

/// The system message of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InspectedSystem {
    /// Origin of the message.
    pub from: SystemSource,
    /// Content of the message.
    pub text: String,
}

impl InspectedSystem {
    /// The system message of a conversation: its own, or the template's default, if any.
    pub(super) fn new(conversation: &Conversation, template: &ChatTemplate) -> Option<Self> {
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
