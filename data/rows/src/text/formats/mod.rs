//! Rows as other programs write them -> the one form that is rendered.
//!
//! One file a format. Each turns its fields into the messages of a [`Conversation`] and keeps the
//! place of every call in the row, so that all formats pass through the same checks with the names
//! that stand in the file. What a row has and its format does not read is counted, never dropped
//! without a word.

mod alpaca;
mod error;
mod json_text;
mod parts;
mod python_types;
mod recognise;
mod sharegpt;
mod tools;
mod unread;
mod xlam;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::conversation::Conversation;
use super::error::DataError;

pub use self::error::FormatError;
pub use self::recognise::{
    Recognised, RecognisedFormat, recognise, recognise_file, recognise_records,
};
pub use self::unread::{NotRead, RowNotes, Unread};

pub(super) use self::parts::joined as joined_parts;

pub(super) use self::recognise::refuse_media;
pub(super) use self::tools::{Wrapping, tools};

/// What a row looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataFormat {
    /// `{"input_text", "json_schema", "gold"}`.
    Slot,
    /// `{"prompt", "completion"}`, each a text or an array of messages.
    PromptCompletion,
    /// `{"messages", "tools"?, "documents"?}`.
    Messages,
    /// `{"conversations", "system"?, "tools"?}`, messages as `{"from", "value"}`.
    #[serde(rename = "sharegpt")]
    ShareGpt,
    /// `{"instruction", "input"?, "output", "history"?, "system"?, "tools"?}`.
    Alpaca,
    /// `{"query", "tools", "answers"}`, the last two as JSON texts.
    Xlam,
}

impl DataFormat {
    /// The name in configs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Slot => "slot",
            Self::PromptCompletion => "prompt-completion",
            Self::Messages => "messages",
            Self::ShareGpt => "sharegpt",
            Self::Alpaca => "alpaca",
            Self::Xlam => "xlam",
        }
    }

    /// Whether a row that was recognised as `found` is one that this format reads.
    ///
    /// ShareGPT's rows may have their messages under `messages`.
    pub(super) fn reads(self, found: Self, fields: &Map<String, Value>) -> bool {
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
        }
    }
}

/// A row in the one form, with the places of its parts.
#[derive(Debug)]
pub(super) struct FormattedRow {
    pub(super) conversation: Conversation,
    /// Where the calls of each message stand in the row, such as `messages[2].tool_calls`.
    pub(super) calls: Vec<String>,
    /// Words for types of parameters that are not known; such parameters take any value.
    pub(super) unknown_types: Vec<String>,
}

/// Reads a row of a format that other programs write.
///
/// # Errors
///
/// - a field is missing, of another type or a text that should be JSON and is not
/// - a speaker is unknown, or a part of a message is no text
pub(super) fn foreign_row(
    format: DataFormat,
    fields: &Map<String, Value>,
) -> Option<Result<FormattedRow, DataError>> {
    match format {
        DataFormat::Slot | DataFormat::PromptCompletion | DataFormat::Messages => None,
        DataFormat::ShareGpt => Some(sharegpt::row(fields)),
        DataFormat::Alpaca => Some(alpaca::row(fields)),
        DataFormat::Xlam => Some(xlam::row(fields)),
    }
}
