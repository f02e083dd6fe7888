//! Errors in a conversation, in a chat template, or in their combination.

use std::path::PathBuf;

use thiserror::Error;
use tooltune_json::{JsonError, ReadError};

use crate::budget::TemplateBudgetError;
use crate::built_in::Replacement;
use crate::kwargs::TemplateKwargError;
use crate::message_fields::MessageFieldError;
use crate::turn_error::TurnError;

/// The reason that a conversation cannot be read or rendered.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The error is in a file of the model.
    #[error("{file}: {error}")]
    InFile {
        /// Path of the file.
        file: String,
        /// The error itself.
        error: Box<TemplateError>,
    },

    /// A field has the wrong type, or a file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),

    /// A file is not one JSON value.
    #[error("not valid JSON: {error}; correct the file, or fetch it again")]
    NotJson {
        /// The error of the JSON parser.
        error: JsonError,
    },

    /// A field of a message is invalid.
    #[error(transparent)]
    MessageField(#[from] MessageFieldError),

    /// A message has an unknown role.
    #[error("{field} is {role:?}; use system, developer, user, assistant or tool")]
    UnknownRole {
        /// Path of the role, such as `messages[2].role`.
        field: String,
        /// The role as given.
        role: String,
    },

    /// A row uses OpenAI's former field names for calls or tools.
    #[error(
        "{field} is an old field name that no template renders; write {instead} instead: {}",
        example_of(instead)
    )]
    OldSpelling {
        /// Path of the field, such as `messages[2].function_call`.
        field: String,
        /// The current field name, `tool_calls` or `tools`.
        instead: &'static str,
    },

    /// The arguments of a tool call, given as a string, are not one JSON object.
    #[error("{field} is a string that is not one JSON object ({reason}); give an object")]
    ToolArguments {
        /// Path of the arguments.
        field: String,
        /// The reason that the string is rejected.
        reason: String,
    },

    /// An argument is declared to come from an earlier result, but the call has no such argument.
    #[error("{field} names {argument:?}, which is not an argument of the call; correct the name")]
    UnknownArgument {
        /// Path of the name.
        field: String,
        /// Name of the missing argument.
        argument: String,
    },

    /// A chat template does not compile.
    #[error("chat template, line {line}: {reason}")]
    TemplateSyntax {
        /// Line of the template, from 1.
        line: usize,
        /// Message of the template engine.
        reason: String,
    },

    /// A prompt template reads an unknown variable, or does not print a required one.
    #[error("{reason}")]
    TemplateVariables {
        /// The variable, and what to do.
        reason: String,
    },

    /// A variable cannot be passed to a chat template.
    #[error(transparent)]
    TemplateKwarg(#[from] TemplateKwargError),

    /// A chat template refused the conversation with `raise_exception`.
    #[error("the chat template refuses the conversation: {message}")]
    TemplateRaised {
        /// The template's own message.
        message: String,
    },

    /// A chat template that renders no tools refused a conversation with tools by
    /// `raise_exception`.
    #[error(
        "the chat template refuses the conversation: {message}; the template renders no tools, but \
         the row has some: set data.chat_template to a template that renders them, such as {instead}"
    )]
    TemplateRaisedAtTools {
        /// The template's own message.
        message: String,
        /// The built-in template to use.
        instead: Replacement,
    },

    /// A chat template failed while it was rendered.
    #[error(
        "chat template, line {line}: {reason}; check that the template supports these messages"
    )]
    TemplateFailed {
        /// Line of the template, from 1; 0 when unknown.
        line: usize,
        /// Message of the template engine.
        reason: String,
    },

    /// A chat template exceeds a limit.
    #[error(transparent)]
    TemplateBudget(#[from] TemplateBudgetError),

    /// A chat template prints `none`, a list or any other value that is not a string.
    #[error(
        "chat template, line {line}: it prints {kind}, which would put Python's representation \
         into the text; use `| tojson`, or give the message a content"
    )]
    NonStringOutput {
        /// Line of the template, from 1; 0 when unknown.
        line: usize,
        /// The type of the printed value.
        kind: String,
    },

    /// The rendered text contains characters that are reserved as marks.
    #[error(
        "the text contains {character:?} (U+10FF00 to U+10FF7F are reserved to mark spans while \
         rendering); remove these private-use characters from the row"
    )]
    ReservedCharacter {
        /// The first such character.
        character: char,
    },

    /// A turn cannot be trained on.
    #[error(transparent)]
    Turn(#[from] TurnError),

    /// A chat template left out an assistant message that is trained on.
    #[error(
        "the chat template leaves out the content or the tool calls of message {message}; use a \
         template that renders them"
    )]
    MessageNotRendered {
        /// The assistant message, from 0.
        message: usize,
    },

    /// A message has only calls, and the template failed because it does not support calls.
    #[error(
        "the chat template renders no tool calls, but message {message} has only tool calls (line \
         {line}: {reason}); set data.chat_template to a template that renders them, such as \
         {instead}"
    )]
    ToolCallsNotRendered {
        /// The message, from 0.
        message: usize,
        /// Line of the template, from 1; 0 when unknown.
        line: usize,
        /// Message of the template engine.
        reason: String,
        /// The built-in template to use.
        instead: Replacement,
    },

    /// A chat template left out a message of the prompt.
    #[error(
        "the chat template leaves out the content of message {message}, a {role} message, so the \
         model would be trained to answer a message that it never sees; set data.chat_template to \
         a template that renders such messages, or remove the message from the row"
    )]
    PromptMessageNotRendered {
        /// The message, from 0.
        message: usize,
        /// The role of its author.
        role: &'static str,
    },

    /// A chat template left out a call, or part of it.
    #[error(
        "the chat template leaves out {part}tool_calls[{call}] of message {message}, so the model \
         would never see it; set data.chat_template to a template that renders all calls, such as \
         {instead}, or remove the call and its result from the row"
    )]
    CallNotRendered {
        /// The assistant message, from 0.
        message: usize,
        /// The call, from 0.
        call: usize,
        /// `the name of `, `the arguments of `, or empty for the whole call.
        part: &'static str,
        /// The built-in template to use.
        instead: Replacement,
    },

    /// A conversation has tools, but renders to the same text without them.
    #[error(
        "the chat template renders no tools, so the model would not see the row's tools; set \
         data.chat_template to a template that renders them, such as {instead}, or remove tools \
         from the row"
    )]
    ToolsNotRendered {
        /// The built-in template to use.
        instead: Replacement,
    },

    /// A conversation has documents, but renders to the same text without them.
    #[error(
        "the chat template renders no documents, so the model would not see the row's documents; \
         set data.chat_template to a template that renders them, or remove documents from the row"
    )]
    DocumentsNotRendered,

    /// A model directory lacks its chat template.
    #[error(
        "{}: no chat template; add chat_template.jinja next to tokenizer.json, or chat_template to \
         tokenizer_config.json", path.display()
    )]
    NoTemplate {
        /// The model directory without a template.
        path: PathBuf,
    },
}

/// Shows the syntax of the field that replaced an old field name.
fn example_of(field: &str) -> &'static str {
    match field {
        "tool_calls" => "[{\"name\": ..., \"arguments\": {...}}]",
        _ => "[{\"type\": \"function\", \"function\": {...}}]",
    }
}

impl TemplateError {
    /// Adds the file that has the error, unless the error already names a file.
    #[must_use]
    pub fn at(self, file: &str) -> Self {
        match self {
            Self::InFile { .. } => self,
            Self::Read(ref error) if error.has_file_path() => self,
            error => Self::InFile {
                file: file.to_owned(),
                error: Box::new(error),
            },
        }
    }

    /// Whether a file could not be read, in which case no row is wrong.
    pub fn is_system_error(&self) -> bool {
        matches!(self.fault(), Self::Read(error) if error.is_system_error())
    }

    /// Returns the error without its file.
    pub(crate) fn fault(&self) -> &Self {
        match self {
            Self::InFile { error, .. } => error.fault(),
            fault => fault,
        }
    }
}
