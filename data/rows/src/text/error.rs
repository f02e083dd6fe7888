//! Errors between reading rows and tokenized examples.
//!
//! The enum is flat; [`DataError::At`] adds the location, which is known for rows read from a file
//! but not for conversations built in memory. Every message states the fix.

use std::path::PathBuf;

use thiserror::Error;
use tooltune_apis::ToolsError;
use tooltune_json::faults::Fault;
use tooltune_json::{JsonError, ReadError, faults};
use tooltune_template::TemplateError;

use super::formats::FormatError;
use super::round_trip::RoundTripMismatch;

/// A reason why text cannot be converted to training tokens.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DataError {
    /// The error belongs to one row.
    #[error("{id}: {error}")]
    At {
        /// The row as `file:line`, or the id given by the caller.
        id: String,
        /// The error of the row.
        error: Box<DataError>,
    },

    /// Several rows have errors.
    #[error("{}", faults::lines(shown, *n_more))]
    Several {
        /// The first errors, in row order; at least two.
        shown: Vec<DataError>,
        /// Number of errors that are not shown.
        n_more: usize,
    },

    /// A conversation or its template cannot be used.
    #[error(transparent)]
    Template(#[from] TemplateError),

    /// An error shared by all row readers.
    #[error(transparent)]
    Read(#[from] ReadError),

    /// A file has no rows.
    #[error("{}: the file has no rows; each line must be one JSON object", path.display())]
    EmptyFile {
        /// Path of the file.
        path: PathBuf,
    },

    /// Every row was dropped.
    #[error("all {n_rows} rows were dropped ({reasons}); relax the options that drop rows")]
    NoExamples {
        /// Number of rows read.
        n_rows: usize,
        /// Number of dropped rows by reason.
        reasons: String,
    },

    /// The mask names a kind of span that occurs in no row.
    #[error(
        "`{setting}` names {span}, but none of the {n_rows} rows has such a span: arguments are found in \
         `tool_calls` of messages and in goat rows, not in calls written as text in `content`; use \
         `tool_calls`, or delete the setting"
    )]
    NoSpan {
        /// Name of the setting.
        setting: &'static str,
        /// The kind of span that no row has.
        span: &'static str,
        /// Number of rows read.
        n_rows: usize,
    },

    /// A line is not UTF-8.
    #[error(
        "invalid UTF-8 at byte {byte} of the line; save the file as UTF-8 (iconv -t utf-8 converts)"
    )]
    NotUtf8 {
        /// Offset of the first invalid byte in the line, from 0.
        byte: usize,
    },

    /// A line is not one JSON value.
    #[error(
        "not valid JSON: {}; each line must be one JSON object",
        error.line_message()
    )]
    NotJson {
        /// Parser error; its columns are bytes of the line.
        error: JsonError,
    },

    /// A row does not match its format.
    #[error(transparent)]
    Format(#[from] FormatError),

    /// API documents or trajectories cannot be read or are inconsistent.
    #[error(transparent)]
    Tools(#[from] ToolsError),

    /// A call has no sub-query, but the method trains on sub-queries.
    #[error(
        "calls[{call}].sub_query is empty or the word DONE, which ends sub-queries; write the \
         goal of the call, or use a method without decomposition"
    )]
    NoSubQuery {
        /// Index of the call.
        call: usize,
    },

    /// Arguments of a call cannot be flattened, although the documents are flat.
    #[error(
        "calls[{call}].arguments cannot be flattened: {reason}; raise data.flatten_slots if a \
         list is longer, or remove data.flatten"
    )]
    NoFlatCall {
        /// Index of the call.
        call: usize,
        /// Why the call cannot be flattened.
        reason: String,
    },

    /// A retriever returned a document that does not exist.
    #[error(
        "the retriever returned document {position}, but there are only {n_documents}; index the \
         documents of this run"
    )]
    BadRanking {
        /// Position of the document, from 0.
        position: usize,
        /// Number of documents in the catalogue.
        n_documents: usize,
    },

    /// An option for trajectories is invalid.
    #[error("goat.{field} {reason}")]
    GoatOptions {
        /// Name of the option.
        field: String,
        /// What is wrong and how to fix it.
        reason: &'static str,
    },

    /// A JSON Schema cannot be used.
    #[error("{field}{pointer} is not a usable JSON schema: {reason}")]
    BadSchema {
        /// Path of the schema, such as `json_schema`.
        field: String,
        /// JSON pointer into the schema; empty for the whole schema.
        pointer: String,
        /// The message of the schema validator.
        reason: String,
    },

    /// A reference answer violates the row's own schema.
    #[error(
        "gold{pointer} does not satisfy json_schema: {reason}; fix the row, which would train the \
         model to violate schemas"
    )]
    GoldInvalid {
        /// JSON pointer into the reference; empty for the whole value.
        pointer: String,
        /// The message of the schema validator.
        reason: String,
    },

    /// A chat template dropped the reasoning of a message.
    #[error(
        "the chat template leaves out the reasoning of message {message}, so the turn would be trained \
         without it; set data.chat_template to a template that renders it, or mask.on_lost_reasoning = \
         \"keep\" to train only on turns that keep their reasoning, or remove the reasoning from the row"
    )]
    ReasoningNotRendered {
        /// Index of the assistant message.
        message: usize,
    },

    /// Spans in `mask.weights` cannot be located in the rendered text.
    #[error(
        "{span} cannot be located in the rendered text, because the template trims, \
         measures, slices or compares it; remove the span from mask.weights or change the template"
    )]
    SpanLost {
        /// Span name in the configuration.
        span: &'static str,
    },

    /// `mask.weights` names an unknown span.
    #[error("mask.weights: unknown span {span:?}; use one of {known}")]
    UnknownSpan {
        /// The unknown name.
        span: String,
        /// The names of all spans.
        known: String,
    },

    /// A weight in `mask.weights` is negative, infinite or not a number.
    #[error("mask.weights: the weight of {span} is {weight}; set it to at least 0")]
    BadWeight {
        /// Span name in the configuration.
        span: String,
        /// The invalid weight.
        weight: f32,
    },

    /// A row's own weight is not a number above 0.
    #[error("the weight of the row is {weight}; set it above 0, or remove the row")]
    BadRowWeight {
        /// The invalid weight.
        weight: f32,
    },

    /// The options contain no end-of-turn token.
    #[error("no stop token is set; set one, otherwise the model never learns to stop")]
    NoStopIds,

    /// A tokenizer file cannot be used.
    #[error("{}: not a usable tokenizer.json: {reason}", path.display())]
    TokenizerFile {
        /// Path of the file.
        path: PathBuf,
        /// Message of the tokenizers library.
        reason: String,
    },

    /// The special tokens alone reach the maximum sequence length.
    #[error("max_seq_length = {0} leaves no room for text after {1} special tokens; raise it")]
    NoRoomForWords(usize, usize),

    /// The tokenizer loses or changes a part of the text.
    #[error(transparent)]
    RoundTripMismatch(#[from] RoundTripMismatch),

    /// The tokenizer failed on a string.
    #[error("the tokenizer failed: {reason}")]
    Tokenize {
        /// Message of the tokenizers library.
        reason: String,
    },

    /// The tokens start with two begin-of-sequence tokens.
    #[error(
        "the row begins with two {token:?}: the template writes one and the row's text another; \
         remove it from the row"
    )]
    DoubleBos {
        /// The begin token, as text.
        token: String,
    },

    /// A row has no supervised token.
    #[error(
        "no token of the row is supervised ({reason}); fix the row, or set mask.on_empty = \
         \"drop\""
    )]
    NothingTrained {
        /// Why no token is supervised.
        reason: &'static str,
    },

    /// A row has no answer to generate.
    #[error(
        "the row has no assistant message that mask.train_on selects, so there is no answer to \
         generate; end the row with an assistant message, or change mask.train_on"
    )]
    NoAnswer,

    /// A row has more tokens than `max_length`.
    #[error(
        "{n_tokens} tokens, but max_length is {max_length}: truncation would train the model on \
         incomplete answers; raise max_length, or set on_overflow = \"drop\""
    )]
    TooLong {
        /// Tokens of the row.
        n_tokens: usize,
        /// The setting `max_length`.
        max_length: usize,
    },

    /// A trained turn does not end with a supervised stop token.
    #[error(
        "no supervised stop token at the end of message {message}, so the model would not \
         learn to stop; the text after the message is {after:?}: use a template that ends the turn with \
         one of the stop tokens {stop_tokens}, and give that token a weight{}",
        fitting_templates(built_in)
    )]
    EndOfTurnNotTrained {
        /// Index of the assistant message.
        message: usize,
        /// The rendered text after the message, up to the end of the turn.
        after: String,
        /// The stop tokens as text.
        stop_tokens: String,
        /// Built-in templates whose turns end with a stop token of the model.
        built_in: Vec<&'static str>,
    },

    /// An answer contains a stop token before its end.
    #[error(
        "message {message} contains the stop token {token:?} after {before:?}: generation would \
         end there and never reach the rest; remove the token from the row, or, if the chat \
         template writes it, use a template that writes it only at the end of a turn"
    )]
    StopTokenInside {
        /// Index of the assistant message.
        message: usize,
        /// The stop token as written in the text.
        token: String,
        /// The end of the text before the token.
        before: String,
    },

    /// A token crosses a span boundary, and `mask.straddle` is `error`.
    #[error(
        "token {token:?} crosses the boundary of {span}; set mask.straddle to \"mask\" or \"train\""
    )]
    Straddles {
        /// Text of the token.
        token: String,
        /// Span name in the configuration.
        span: &'static str,
    },
}

impl DataError {
    /// Adds the row that has the error, unless one is already known.
    #[must_use]
    pub fn at(self, id: &str) -> Self {
        match self {
            Self::At { .. } | Self::EmptyFile { .. } | Self::Several { .. } => self,
            Self::Template(TemplateError::InFile { .. }) => self,
            Self::Read(ref error) | Self::Template(TemplateError::Read(ref error))
                if error.has_file_path() =>
            {
                self
            }
            error => Self::At {
                id: id.to_owned(),
                error: Box::new(error),
            },
        }
    }

    /// The error without its row; the first one if there are several.
    pub fn fault(&self) -> &Self {
        match self {
            Self::At { error, .. } => error.fault(),
            Self::Several { shown, .. } => shown.first().map_or(self, Self::fault),
            fault => fault,
        }
    }

    /// Whether a file could not be read, in which case no row is wrong.
    pub fn is_system_error(&self) -> bool {
        match self.fault() {
            Self::Read(error) => error.is_system_error(),
            Self::Template(error) => error.is_system_error(),
            Self::Tools(error) => error.is_system_error(),
            _ => false,
        }
    }
}

/// Suggests built-in templates if the template ends turns with the tokens of a different model.
fn fitting_templates(built_in: &[&str]) -> String {
    if built_in.is_empty() {
        return String::new();
    }
    let settings: Vec<String> = built_in
        .iter()
        .map(|name| format!("data.chat_template = {name:?}"))
        .collect();
    format!(
        "; built-in templates for this model's turns: {}",
        settings.join(" or ")
    )
}

impl Fault for DataError {
    fn combine(shown: Vec<Self>, n_more: usize) -> Self {
        Self::Several { shown, n_more }
    }

    fn location_and_message(&self) -> Option<(&str, String)> {
        match self {
            Self::At { id, error } => Some((id, error.to_string())),
            Self::Template(TemplateError::InFile { file, error }) => {
                Some((file, error.to_string()))
            }
            Self::Tools(error) => error.location_and_message(),
            _ => None,
        }
    }
}
