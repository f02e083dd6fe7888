//! What can be wrong between a file of rows and tokenized examples.
//!
//! The enum is flat, and [`DataError::At`] adds the place: a conversation rendered by hand has no
//! file and line, the same fault found in a file has. Every message says how to fix the fault.

use std::path::PathBuf;

use thiserror::Error;

use super::formats::FormatError;
use super::given_back::NotGivenBack;
use super::message_fields::MessageFieldError;
use super::template::{TemplateBudgetError, TemplateKwargError, TurnError};
use crate::faults::{self, Fault};
use crate::json::JsonError;
use crate::read_error::ReadError;
use crate::tools::ToolsError;

/// A reason why text cannot become tokens to train on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DataError {
    /// The fault belongs to one row.
    #[error("{id}: {error}")]
    At {
        /// The row as `file:line`, or the id that the caller gave it.
        id: String,
        /// What is wrong with the row.
        error: Box<DataError>,
    },

    /// Several rows are at fault.
    #[error("{}", faults::lines(shown, *n_more))]
    Several {
        /// The first faults, in the order of the rows; more than one.
        shown: Vec<DataError>,
        /// Further ones, counted only.
        n_more: usize,
    },

    /// A fault that every reader of rows can meet.
    #[error(transparent)]
    Read(#[from] ReadError),

    /// A file of rows has none.
    #[error("{}: the file holds no rows; each line must be one JSON object", path.display())]
    EmptyFile {
        /// The file.
        path: PathBuf,
    },

    /// No example was left after rows were dropped.
    #[error("none of the {n_rows} rows gives an example ({reasons}); relax the options that drop")]
    NoExamples {
        /// Rows read.
        n_rows: usize,
        /// How many were dropped for which reason.
        reasons: String,
    },

    /// A kind of span that the mask names is in no row.
    #[error(
        "`{setting}` names {span}, and none of the {n_rows} rows has one: arguments are found in \
         the `tool_calls` of messages and in goat rows, not in calls that a content writes out; \
         put the calls there, or delete the setting"
    )]
    NoSpan {
        /// The setting.
        setting: &'static str,
        /// The kind.
        span: &'static str,
        /// Rows read.
        n_rows: usize,
    },

    /// A line is not UTF-8.
    #[error(
        "invalid UTF-8 at byte {byte} of the line; save the file as UTF-8 (iconv -t utf-8 converts)"
    )]
    NotUtf8 {
        /// Offset of the first bad byte in the line, from 0.
        byte: usize,
    },

    /// A line is not one JSON value.
    #[error(
        "not valid JSON: {}; each line must hold one JSON object",
        within_line(error)
    )]
    NotJson {
        /// What the parser says; its columns count bytes of the line.
        error: JsonError,
    },

    /// A field of a message cannot be meant as it is written.
    #[error(transparent)]
    MessageField(#[from] MessageFieldError),

    /// A message has a role that no chat template knows.
    #[error("{field} is {role:?}; use system, developer, user, assistant or tool")]
    UnknownRole {
        /// Where the role is, such as `messages[2].role`.
        field: String,
        /// The role as given.
        role: String,
    },

    /// A row spells calls or tools as OpenAI's files once did.
    #[error(
        "{field} is an old spelling that no template renders; write {instead} in its place: {}",
        example_of(instead)
    )]
    OldSpelling {
        /// Where it stands, such as `messages[2].function_call`.
        field: String,
        /// The field of today, `tool_calls` or `tools`.
        instead: &'static str,
    },

    /// The arguments of a tool call, given as a JSON text, are not one JSON object.
    #[error("{field} is a text that is not one JSON object ({reason}); give an object")]
    ToolArguments {
        /// Where the arguments are.
        field: String,
        /// Why the text is refused.
        reason: String,
    },

    /// A value is said to come from an earlier result, but the call has no such argument.
    #[error("{field} names {argument:?}, which is no argument of the call; correct the name")]
    UnknownArgument {
        /// Where the name stands.
        field: String,
        /// The name.
        argument: String,
    },

    /// A row is not what its format says.
    #[error(transparent)]
    Format(#[from] FormatError),

    /// API documents or trajectories cannot be read, or contradict each other.
    #[error(transparent)]
    Tools(#[from] ToolsError),

    /// A call has no sub-query, and the method learns sub-queries.
    #[error(
        "calls[{call}].sub_query is empty or the word DONE, which ends sub-queries; write what the \
         call is to find out, or use a method without decomposition"
    )]
    NoSubQuery {
        /// The call, from 0.
        call: usize,
    },

    /// A call that documents are flat for has no flat form itself.
    #[error(
        "calls[{call}].arguments have no flat form: {reason}; raise data.flatten_slots where a list is \
         longer, or take data.flatten out"
    )]
    NoFlatCall {
        /// The call, from 0.
        call: usize,
        /// Why not.
        reason: String,
    },

    /// A retriever ranked a document that does not exist.
    #[error(
        "the retriever names document {position}, but there are {n_documents}; index the documents \
         of this run"
    )]
    BadRanking {
        /// The position, from 0.
        position: usize,
        /// Documents of the catalogue.
        n_documents: usize,
    },

    /// An option for trajectories makes no sense.
    #[error("goat.{field} {reason}")]
    GoatOptions {
        /// The option.
        field: String,
        /// What is wrong and how to fix it.
        reason: &'static str,
    },

    /// A JSON schema cannot be used.
    #[error("{field}{pointer} is not a usable JSON schema: {reason}")]
    BadSchema {
        /// Where the schema is, such as `json_schema`.
        field: String,
        /// JSON pointer into the schema; empty for the whole.
        pointer: String,
        /// What the validator says.
        reason: String,
    },

    /// A gold value does not satisfy the row's own schema.
    #[error(
        "gold{pointer} does not satisfy json_schema: {reason}; fix the row, for it would teach \
         the model to break schemas"
    )]
    GoldInvalid {
        /// JSON pointer into the gold; empty for the whole.
        pointer: String,
        /// What the validator says.
        reason: String,
    },

    /// A chat template does not compile.
    #[error("chat template, line {line}: {reason}")]
    TemplateSyntax {
        /// Line of the template, from 1.
        line: usize,
        /// What the engine says.
        reason: String,
    },

    /// A template of a prompt reads what it is not given, or not what it must print.
    #[error("{reason}")]
    TemplateVariables {
        /// Which variable, and what to do.
        reason: String,
    },

    /// A variable cannot be handed to a chat template.
    #[error(transparent)]
    TemplateKwarg(#[from] TemplateKwargError),

    /// A chat template refused the conversation with `raise_exception`.
    #[error("the chat template refuses the conversation: {message}")]
    TemplateRaised {
        /// The template's own words.
        message: String,
    },

    /// A chat template failed while rendering.
    #[error("chat template, line {line}: {reason}; does the template support these messages?")]
    TemplateFailed {
        /// Line of the template, from 1; 0 when unknown.
        line: usize,
        /// What the engine says.
        reason: String,
    },

    /// A chat template asks for more than it may have.
    #[error(transparent)]
    TemplateBudget(#[from] TemplateBudgetError),

    /// A chat template prints a value that has no text of its own, such as none or a list.
    #[error(
        "chat template, line {line}: it prints {kind}, whose Python spelling would land in the \
         text; use `| tojson`, or give the message a content"
    )]
    NonStringOutput {
        /// Line of the template, from 1; 0 when unknown.
        line: usize,
        /// What kind of value was printed.
        kind: String,
    },

    /// The rendered text holds characters that mark spans while rendering.
    #[error(
        "the text holds {character:?} (U+10FF00 to U+10FF7F are reserved to mark spans while \
         rendering); remove these private-use characters from the row"
    )]
    ReservedCharacter {
        /// The first such character.
        character: char,
    },

    /// A turn cannot be learned as the row has it.
    #[error(transparent)]
    Turn(#[from] TurnError),

    /// A chat template left out an assistant message that should be learned.
    #[error(
        "the chat template leaves out the content or the tool calls of message {message}; use a \
         template that renders them"
    )]
    MessageNotRendered {
        /// The assistant message, from 0.
        message: usize,
    },

    /// A message has calls and no content, and the template failed because it knows no calls.
    #[error(
        "the chat template renders no tool calls, and message {message} has nothing else (line \
         {line} of it: {reason}); set data.chat_template to a template that renders them, such as \
         \"chatml-tools\" for models with <|im_start|> and <|im_end|>"
    )]
    ToolCallsNotRendered {
        /// The message, from 0.
        message: usize,
        /// Line of the template, from 1; 0 when unknown.
        line: usize,
        /// What the engine says.
        reason: String,
    },

    /// A chat template left out a message that the model should have read.
    #[error(
        "the chat template leaves out the content of message {message}, a {role} message, so the \
         model would learn an answer to what it has not read; set data.chat_template to a template \
         that renders such messages, or leave the message out of the row"
    )]
    PromptMessageNotRendered {
        /// The message, from 0.
        message: usize,
        /// Who speaks it.
        role: &'static str,
    },

    /// A chat template left out a call, or a part of it.
    #[error(
        "the chat template leaves out {part}tool_calls[{call}] of message {message}, so the model \
         would never see it; set data.chat_template to a template that renders all calls, such as \
         \"chatml-tools\" for models with <|im_start|> and <|im_end|>, or leave \
         the call and its result out of the row"
    )]
    CallNotRendered {
        /// The assistant message, from 0.
        message: usize,
        /// The call, from 0.
        call: usize,
        /// `the name of `, `the arguments of `, or nothing where it is the whole call.
        part: &'static str,
    },

    /// A chat template left out the reasoning of a message.
    #[error(
        "the chat template leaves out the reasoning of message {message}, so the turn would be learned \
         without it; set data.chat_template to a template that renders it, or mask.on_lost_reasoning = \
         \"keep\", which learns only turns that keep theirs, or leave the reasoning out of the row"
    )]
    ReasoningNotRendered {
        /// The assistant message, from 0.
        message: usize,
    },

    /// A conversation has tools, and its text is the same without them.
    #[error(
        "the chat template renders no tools, so the model would not see those of the row; set \
         data.chat_template to a template that renders them, such as \
         \"chatml-tools\" for models with <|im_start|> and <|im_end|>, or leave \
         tools out of the row"
    )]
    ToolsNotRendered,

    /// A conversation has documents, and its text is the same without them.
    #[error(
        "the chat template renders no documents, so the model would not see those of the row; set \
         data.chat_template to a template that renders them, or leave documents out of the row"
    )]
    DocumentsNotRendered,

    /// Spans that `mask.weights` needs cannot be located in the rendered text.
    #[error(
        "the place of {span} in the rendered text is unknown, because the template trims, \
         measures, slices or compares it; remove the span from mask.weights or change the template"
    )]
    SpanLost {
        /// The span as spelled in the configuration.
        span: &'static str,
    },

    /// A span name in `mask.weights` does not exist.
    #[error("mask.weights: unknown span {span:?}; use one of {known}")]
    UnknownSpan {
        /// The name as given.
        span: String,
        /// The names that exist.
        known: String,
    },

    /// A weight in `mask.weights` is negative, infinite or not a number.
    #[error("mask.weights: the weight of {span} is {weight}; give a number of at least 0")]
    BadWeight {
        /// The span as spelled in the configuration.
        span: String,
        /// The weight as given.
        weight: f32,
    },

    /// A row's own weight is not a number above 0.
    #[error("the row weighs {weight}; give a number above 0, or leave the row out")]
    BadRowWeight {
        /// The weight as given.
        weight: f32,
    },

    /// The options name no token that ends a turn.
    #[error("no stop token is given; a model that never learns one never stops")]
    NoStopIds,

    /// A tokenizer file cannot be used.
    #[error("{}: not a usable tokenizer.json: {reason}", path.display())]
    TokenizerFile {
        /// The file.
        path: PathBuf,
        /// What the tokenizer library says.
        reason: String,
    },

    /// Texts are to be cut at so many tokens, beside so many special ones: no word is left.
    #[error("max_seq_length = {0} leaves no token for a text beside {1} special ones; raise it")]
    NoRoomForWords(usize, usize),

    /// A model directory lacks its chat template.
    #[error(
        "{}: no chat template; put chat_template.jinja beside tokenizer.json, or chat_template \
         into tokenizer_config.json", path.display()
    )]
    NoTemplate {
        /// The model directory.
        path: PathBuf,
    },

    /// The tokenizer loses or changes a piece of a text.
    #[error(transparent)]
    NotGivenBack(#[from] NotGivenBack),

    /// The tokenizer failed on a text.
    #[error("the tokenizer failed: {reason}")]
    Tokenize {
        /// What the tokenizer library says.
        reason: String,
    },

    /// The tokens begin with two begin-of-sequence tokens.
    #[error(
        "the row begins with two {token:?}: the template writes one and the row's text another; \
         remove it from the row"
    )]
    DoubleBos {
        /// The token.
        token: String,
    },

    /// A row has no token to learn.
    #[error(
        "no token of the row would be learned ({reason}); fix the row, or set mask.on_empty = \
         \"drop\""
    )]
    NothingTrained {
        /// Why none is left.
        reason: &'static str,
    },

    /// A row has no answer that a model could be asked for.
    #[error(
        "the row has no assistant message that mask.train_on selects, so there is no answer that the \
         model could be asked for; end the row with one, or choose its turns with mask.train_on"
    )]
    NoAnswer,

    /// A row has more tokens than fit.
    #[error(
        "{n_tokens} tokens, but max_length is {max_length}: the completion would be cut, and a cut \
         answer teaches broken answers; raise max_length, or set on_overflow = \"drop\""
    )]
    TooLong {
        /// Tokens of the row.
        n_tokens: usize,
        /// Tokens that fit.
        max_length: usize,
    },

    /// No stop token would be learned at the end of a trained turn.
    #[error(
        "no stop token is learned at the end of message {message}, so the model would not learn \
         to stop; the text after the message is {after:?}: use a template that ends the turn with \
         one of the stop tokens {stop_tokens}, and give that token a weight"
    )]
    EndOfTurnNotTrained {
        /// The assistant message, from 0.
        message: usize,
        /// The rendered text that follows the message, up to the end of the turn.
        after: String,
        /// The stop tokens as text.
        stop_tokens: String,
    },

    /// An answer holds a stop token before its end.
    #[error(
        "message {message} holds the stop token {token:?} after {before:?}: generation ends there, so \
         that the model would never write what follows; take the token out of the row, or, where the \
         chat template writes it, use a template that ends a turn once"
    )]
    StopTokenInside {
        /// The assistant message, from 0.
        message: usize,
        /// The stop token as the text has it.
        token: String,
        /// The end of the answer's text before it.
        before: String,
    },

    /// A token crosses the border of a span, and `mask.straddle` is `error`.
    #[error(
        "token {token:?} crosses the border of {span}; set mask.straddle to \"mask\" or \"train\""
    )]
    Straddles {
        /// The token's text.
        token: String,
        /// The span as spelled in the configuration.
        span: &'static str,
    },
}

/// The parser counts lines within the text it got, which is one line of the file.
fn within_line(error: &JsonError) -> String {
    match error {
        JsonError::Refused { column, reason, .. } => format!("column {column}: {reason}"),
        other => other.to_string(),
    }
}

/// How the fields are written that took the place of older ones.
fn example_of(field: &str) -> &'static str {
    match field {
        "tool_calls" => "[{\"name\": ..., \"arguments\": {...}}]",
        _ => "[{\"type\": \"function\", \"function\": {...}}]",
    }
}

impl DataError {
    /// Adds the row that the fault belongs to, unless one is known already.
    #[must_use]
    pub fn at(self, id: &str) -> Self {
        match self {
            Self::At { .. } | Self::EmptyFile { .. } | Self::Several { .. } => self,
            Self::Read(ref error) if error.names_its_file() => self,
            error => Self::At {
                id: id.to_owned(),
                error: Box::new(error),
            },
        }
    }

    /// The fault itself, without the row it belongs to; of several the first.
    pub fn fault(&self) -> &Self {
        match self {
            Self::At { error, .. } => error.fault(),
            Self::Several { shown, .. } => shown.first().map_or(self, Self::fault),
            fault => fault,
        }
    }
}

impl Fault for DataError {
    fn several(shown: Vec<Self>, n_more: usize) -> Self {
        Self::Several { shown, n_more }
    }

    fn placed(&self) -> Option<(&str, String)> {
        match self {
            Self::At { id, error } => Some((id, error.to_string())),
            Self::Tools(error) => error.placed(),
            _ => None,
        }
    }
}
