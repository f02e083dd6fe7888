//! Converts rows in other programs' formats to conversations.
//!
//! There is one file per format. Each converts its fields to the messages of a [`Conversation`] and
//! records the path of every call in the row, so that the same checks apply to all formats and
//! errors contain the row's own field names. Fields that a format does not read are counted and
//! reported.

mod alpaca;
mod error;
mod json_text;
mod python_types;
mod recognise;
mod sharegpt;
mod tools;
mod unread;
mod xlam;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tooltune_template::conversation::Conversation;

use super::error::DataError;

pub use self::error::FormatError;
pub use self::recognise::{
    RecognisedFile, RecognisedFormat, recognise, recognise_file, recognise_records,
};
pub use self::unread::{RowNotes, UnreadCount, UnreadData};

pub(super) use self::recognise::refuse_media;
pub(super) use self::tools::{Wrapping, tools};

/// Format of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataFormat {
    /// `{"input_text", "json_schema", "gold"}`.
    Slot,
    /// `{"prompt", "completion"}`, each a string or an array of messages.
    PromptCompletion,
    /// `{"messages", "tools"?, "documents"?}`.
    Messages,
    /// `{"conversations", "system"?, "tools"?}`, messages as `{"from", "value"}`.
    #[serde(rename = "sharegpt")]
    ShareGpt,
    /// `{"instruction", "input"?, "output", "history"?, "system"?, "tools"?}`.
    Alpaca,
    /// `{"query", "tools", "answers"}`, the last two as JSON strings.
    Xlam,
    /// Conversations in any of the formats above, recognised for each row by its fields.
    Chat,
}

impl DataFormat {
    /// The name of the format in configs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Slot => "slot",
            Self::PromptCompletion => "prompt-completion",
            Self::Messages => "messages",
            Self::ShareGpt => "sharegpt",
            Self::Alpaca => "alpaca",
            Self::Xlam => "xlam",
            Self::Chat => "chat",
        }
    }

    /// The format of a single row; for [`DataFormat::Chat`] it is recognised by the row's fields.
    ///
    /// # Errors
    ///
    /// - a row of [`DataFormat::Chat`] matches no conversation format, or several formats
    pub(super) fn for_row(self, fields: &Map<String, Value>) -> Result<Self, FormatError> {
        if self != Self::Chat {
            return Ok(self);
        }
        match recognise(fields)? {
            RecognisedFormat::Rows(recognised) if recognised != Self::Slot => Ok(recognised),
            recognised => Err(FormatError::Other {
                found: recognised.as_str(),
                expected: self.as_str(),
            }),
        }
    }

    /// Whether rows of both formats can be read together as [`DataFormat::Chat`] and have the same
    /// default supervision.
    pub fn mixes_with(self, other: Self) -> bool {
        let is_chat = |format| {
            matches!(
                format,
                Self::Messages | Self::ShareGpt | Self::Alpaca | Self::Chat
            )
        };
        is_chat(self) && is_chat(other)
    }

    /// Whether this format can read a row that was recognised as `found`.
    ///
    /// ShareGPT rows may have their messages under `messages`.
    pub(super) fn can_read(self, found: Self, fields: &Map<String, Value>) -> bool {
        let has_messages = fields.contains_key("messages");
        self == found || (self == Self::ShareGpt && found == Self::Messages && has_messages)
    }

    /// The fields of a row that become text.
    pub fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Slot => &["input_text", "json_schema", "gold"],
            Self::PromptCompletion => &["prompt", "completion", "tools", "documents"],
            Self::Messages => &["messages", "tools", "documents"],
            Self::ShareGpt => &["conversations", "messages", "system", "tools"],
            Self::Alpaca => &[
                "instruction",
                "input",
                "output",
                "history",
                "system",
                "tools",
            ],
            Self::Xlam => &["query", "tools", "answers"],
            Self::Chat => &[
                "messages",
                "conversations",
                "prompt",
                "completion",
                "instruction",
                "input",
                "output",
                "history",
                "system",
                "query",
                "answers",
                "tools",
                "documents",
            ],
        }
    }
}

/// A converted row with the paths of its parts.
#[derive(Debug)]
pub(super) struct FormattedRow {
    pub(super) conversation: Conversation,
    /// Path of the calls of each message in the row, such as `messages[2].tool_calls`.
    pub(super) calls: Vec<String>,
    /// Unknown type names of parameters; such parameters accept any value.
    pub(super) unknown_types: Vec<String>,
}

/// Reads a row in another program's format.
///
/// # Errors
///
/// - a field is missing, has the wrong type, or is a string that is not valid JSON
/// - a speaker is unknown, or a part of a message is not text
pub(super) fn foreign_row(
    format: DataFormat,
    fields: &Map<String, Value>,
) -> Option<Result<FormattedRow, DataError>> {
    match format {
        DataFormat::Slot
        | DataFormat::PromptCompletion
        | DataFormat::Messages
        | DataFormat::Chat => None,
        DataFormat::ShareGpt => Some(sharegpt::row(fields)),
        DataFormat::Alpaca => Some(alpaca::row(fields)),
        DataFormat::Xlam => Some(xlam::row(fields)),
    }
}
