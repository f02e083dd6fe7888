//! What is wrong with a row as its format has it.

use thiserror::Error;

/// A reason why a row is not what its format says.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// A row has the fields of no format.
    #[error("the rows are of no known format; the first has {has}. Looked for:\n{looked_for}")]
    Unknown {
        /// The fields that are there.
        has: String,
        /// A line for each format: what it needs, and what of it is missing.
        looked_for: String,
    },

    /// A row has the fields of several formats.
    #[error(
        "the row has the fields of {formats}; name the one that is meant with data.format, or take \
         the fields of the other out"
    )]
    Several {
        /// The formats, with the fields that they need.
        formats: String,
    },

    /// A row is of another format than the file it stands in.
    #[error(
        "the row is of the format {found}, and the rows before it or data.format say {expected}; \
         all files of a run have one format: convert the others, or name another data.format"
    )]
    Other {
        /// The format of the row.
        found: &'static str,
        /// The format that is read.
        expected: &'static str,
    },

    /// A text that should hold JSON does not.
    #[error("{field} is a text that is not one JSON value ({reason}); give {expected}")]
    JsonText {
        /// Where the text stands, such as `tools`.
        field: String,
        /// Why it is refused.
        reason: String,
        /// What may stand there.
        expected: &'static str,
    },

    /// A part of a message is no text.
    #[error(
        "{field} is a part of the type {kind:?}; language models read text alone: use parts of the \
         type \"text\", or leave the row out"
    )]
    NoTextPart {
        /// Where the part stands, such as `messages[0].content[1]`.
        field: String,
        /// Its type.
        kind: String,
    },

    /// A row has pictures, sounds or films.
    #[error(
        "{field} holds what is no text, and language models read text alone; leave the row out, or \
         the field where the text can do without it"
    )]
    Media {
        /// The field, such as `images`.
        field: &'static str,
    },

    /// Nobody is known to speak so.
    #[error(
        "{field} is {from:?}; use human or user, gpt or assistant, system, developer, tool, \
         observation or tool_response, function_call or tool_call"
    )]
    UnknownSpeaker {
        /// Where the speaker stands, such as `conversations[2].from`.
        field: String,
        /// The speaker as given.
        from: String,
    },

    /// A conversation has two system prompts that differ.
    #[error(
        "the row has a system prompt in {first} and another one in {second}; keep one of the two"
    )]
    TwoSystemPrompts {
        /// Where the one stands.
        first: &'static str,
        /// Where the other stands.
        second: String,
    },

    /// An item has fields of two spellings.
    #[error("{field} has {first} and {second}; keep one of the two")]
    TwoSpellings {
        /// Where the item stands.
        field: String,
        /// A field of the one.
        first: &'static str,
        /// A field of the other.
        second: &'static str,
    },

    /// A list that must hold something is empty.
    #[error("{field} is an empty list; {needed}")]
    EmptyList {
        /// Where the list stands.
        field: String,
        /// What it must hold.
        needed: &'static str,
    },
}
