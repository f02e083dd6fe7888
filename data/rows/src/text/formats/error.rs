//! Errors of rows that do not match their format.

use thiserror::Error;

/// A reason why a row does not match its format.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// A row matches no format.
    #[error(
        "the format of the rows is unknown; the first row has {has}. Known formats:\n{looked_for}"
    )]
    Unknown {
        /// Fields of the row.
        has: String,
        /// One line per format: required fields and the missing ones.
        looked_for: String,
    },

    /// A row matches several formats.
    #[error(
        "the row has the fields of several formats: {formats}; set data.format to one of them, \
         or remove the fields of the others"
    )]
    Several {
        /// The formats with their required fields.
        formats: String,
    },

    /// A row has a different format than its file.
    #[error(
        "the row has the format {found}, but data.format or the rows before it have {expected}; \
         set data.format = \"chat\" to read conversations of all formats, or convert the row"
    )]
    Other {
        /// Format of the row.
        found: &'static str,
        /// The format that the data set has.
        expected: &'static str,
    },

    /// A string that should contain JSON does not.
    #[error("{field} is a string that is not one JSON value ({reason}); write {expected}")]
    JsonText {
        /// Path of the string, such as `tools`.
        field: String,
        /// The message of the JSON parser.
        reason: String,
        /// The values that the string may contain.
        expected: &'static str,
    },

    /// A row contains images, audio or video.
    #[error(
        "{field} contains images, audio or video, but only text is supported; remove the row, or \
         the field if the text makes sense without it"
    )]
    Media {
        /// Name of the field, such as `images`.
        field: &'static str,
    },

    /// A message has an unknown speaker.
    #[error(
        "{field} is {from:?}; use human or user, gpt or assistant, system, developer, tool, \
         function, observation or tool_response, function_call or tool_call"
    )]
    UnknownSpeaker {
        /// Path of the speaker, such as `conversations[2].from`.
        field: String,
        /// The unknown speaker.
        from: String,
    },

    /// A conversation has two different system prompts.
    #[error("the row has different system prompts in {first} and in {second}; keep one of them")]
    TwoSystemPrompts {
        /// Path of the first prompt.
        first: &'static str,
        /// Path of the second prompt.
        second: String,
    },

    /// An item mixes fields of two formats.
    #[error("{field} has both {first} and {second}; keep one of them")]
    TwoSpellings {
        /// Path of the item.
        field: String,
        /// A field of the first format.
        first: &'static str,
        /// A field of the second format.
        second: &'static str,
    },

    /// A required list is empty.
    #[error("{field} is an empty list; {needed}")]
    EmptyList {
        /// Path of the list.
        field: String,
        /// What the list must contain.
        needed: &'static str,
    },
}
