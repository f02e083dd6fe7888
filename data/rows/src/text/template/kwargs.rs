//! Further variables of a template, such as `enable_thinking`: `chat_template_kwargs`; and the system
//! message of conversations without one.
//!
//! They are as much part of what a model learns as the template itself, so a template that leaves
//! this program carries them as defaults: a server that is told nothing renders what was trained,
//! and one that is told something else obeys.

use std::fmt::Write as _;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value};
use thiserror::Error;

use super::{ChatTemplate, python};
use crate::json::{self, Style};
use crate::text::error::DataError;

/// Names that templates are given by others, or that Jinja2 itself knows.
///
/// # Source
///
/// transformers 5.23, `apply_chat_template` (its parameters, and the special tokens that it hands
/// on) and `_compile_jinja_template`; Jinja2 3.1, `defaults.DEFAULT_NAMESPACE` and its reserved words.
const RESERVED: [&str; 54] = [
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
    "additional_special_tokens",
    "conversation",
    "conversations",
    "chat_template",
    "tokenize",
    "sanitize_control_tokens",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
    "kwargs",
    "varargs",
    "caller",
    "raise_exception",
    "strftime_now",
    "range",
    "dict",
    "lipsum",
    "cycler",
    "joiner",
    "namespace",
    "loop",
    "self",
    "true",
    "false",
    "none",
    "True",
    "False",
    "None",
    "and",
    "or",
    "not",
    "in",
    "is",
    "if",
    "else",
    "for",
    "set",
    "import",
];

/// A key of `data.chat_template_kwargs` that cannot be handed to a template.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TemplateKwargError {
    /// The template gets this name from elsewhere.
    #[error(
        "data.chat_template_kwargs.{name} cannot be set: templates are given {name} by every program that \
         renders them; delete the key"
    )]
    Reserved {
        /// The key.
        name: String,
    },

    /// The key is no name that a template could read.
    #[error(
        "data.chat_template_kwargs.{name} is no name of a variable; write letters, digits and underscores, \
         and no digit first"
    )]
    NoName {
        /// The key.
        name: String,
    },

    /// The template has no such variable.
    #[error(
        "the chat template never reads data.chat_template_kwargs.{name}, so it would change nothing; {advice}"
    )]
    NeverRead {
        /// The key.
        name: String,
        /// The nearest variable that it reads, or all of them.
        advice: String,
    },
}

impl TemplateKwargError {
    /// Checks the name of a key, whatever the template.
    ///
    /// # Errors
    ///
    /// - the name is reserved, or none of a variable
    pub fn check_name(name: &str) -> Result<(), Self> {
        let name = name.to_owned();
        let mut characters = name.chars();
        let begins = |c: char| c == '_' || c.is_ascii_alphabetic();
        let goes_on = |c: char| c == '_' || c.is_ascii_alphanumeric();
        if !characters.next().is_some_and(begins) || !characters.all(goes_on) {
            return Err(Self::NoName { name });
        }
        if RESERVED.contains(&&*name) || name.starts_with("tooltune_") {
            return Err(Self::Reserved { name });
        }
        Ok(())
    }
}

impl ChatTemplate {
    /// Hands further variables to the template in every rendering.
    ///
    /// # Errors
    ///
    /// - a name is reserved, or none of a variable
    /// - the template never reads it
    pub fn with_kwargs(mut self, kwargs: Map<String, Value>) -> Result<Self, DataError> {
        for name in kwargs.keys() {
            TemplateKwargError::check_name(name)?;
            self.must_read(name)?;
        }
        self.variables = kwargs;
        Ok(self)
    }

    /// Has the template's text for other programs write this system message where the messages begin
    /// with none; renderings here are of the messages that they are given.
    #[must_use]
    pub fn with_served_system(self, text: Option<String>) -> Self {
        Self {
            served_system: text,
            ..self
        }
    }

    /// The template's text for other programs: its variables and its system message are set at the
    /// top, unless the caller sets them.
    ///
    /// Those lines print nothing and end with a line break that belongs to their last tag
    /// (`trim_blocks`), so that the rest is read as at the beginning of a text.
    pub fn served_source(&self) -> String {
        let mut served = String::new();
        for (name, value) in &self.variables {
            let value = literal(value);
            // Writing to a text cannot fail.
            let _ = write!(
                served,
                "{{%- if {name} is not defined %}}{{%- set {name} = {value} %}}{{%- endif %}}"
            );
        }
        if let Some(text) = &self.served_system {
            let text = quoted(text);
            let _ = write!(
                served,
                "{{%- if not messages or messages[0].role not in [\"system\", \"developer\"] %}}\
                 {{%- set messages = [{{\"role\": \"system\", \"content\": {text}}}] + messages %}}\
                 {{%- endif %}}"
            );
        }
        if !served.is_empty() {
            served.push('\n');
        }
        served + &self.source
    }

    fn must_read(&self, name: &str) -> Result<(), TemplateKwargError> {
        let read = self.variables_read();
        if read.iter().any(|variable| variable == name) || sets_itself(&self.source, name) {
            return Ok(());
        }
        let near = read
            .iter()
            .map(|variable| (strsim::damerau_levenshtein(variable, name), variable))
            .filter(|(distance, variable)| *distance <= variable.len().max(name.len()) / 3)
            .min();
        let advice = match near {
            Some((_, variable)) => format!("did you mean {variable}?"),
            None if read.is_empty() => "it has no variables; delete the key".to_owned(),
            None => format!("its variables are {}", read.join(", ")),
        };
        Err(TemplateKwargError::NeverRead {
            name: name.to_owned(),
            advice,
        })
    }

    /// The variables that the template reads and that are not given by every program, sorted.
    fn variables_read(&self) -> Vec<String> {
        let all = python::syntax().map(|syntax| self.program.variables(syntax));
        let mut read: Vec<String> = all
            .unwrap_or_default()
            .into_iter()
            .filter(|name| TemplateKwargError::check_name(name).is_ok())
            .collect();
        read.sort();
        read
    }
}

/// Whether a variable is set from itself, as in `set x = x if x is defined else true`, which hides
/// the reading from minijinja's list.
fn sets_itself(source: &str, name: &str) -> bool {
    static SET: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"(?s)\{%[-+]?\s*set\s+(\w+)\s*=(.*?)%\}").ok());
    let is_word = |text: &str| {
        text.split(|c: char| c != '_' && !c.is_alphanumeric())
            .any(|word| word == name)
    };
    SET.as_ref().is_some_and(|set| {
        set.captures_iter(source)
            .any(|found| &found[1] == name && is_word(&found[2]))
    })
}

/// A value as Jinja2 writes it in a template.
fn literal(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => quoted(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(literal).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(fields) => {
            let field =
                |(key, value): (&String, &Value)| format!("{}: {}", quoted(key), literal(value));
            let fields: Vec<String> = fields.iter().map(field).collect();
            format!("{{{}}}", fields.join(", "))
        }
        plain => json::dumps(plain, Style::Python),
    }
}

/// A text in quotes; characters beyond ASCII stay as they are, because Jinja2 reads an escaped pair
/// of surrogates as two characters.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            // Writing to a text cannot fail.
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}
