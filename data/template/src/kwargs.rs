//! Additional template variables such as `enable_thinking` (`chat_template_kwargs`), and the system
//! message for conversations without one.
//!
//! These variables affect the training text as much as the template itself, so an exported template
//! contains them as defaults. A server without these settings then renders the text as in training,
//! and explicit settings override the defaults.

use std::fmt::Write as _;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value};
use thiserror::Error;
use tooltune_json as json;
use tooltune_json::Style;

use super::{ChatTemplate, python};
use crate::error::TemplateError;

/// Names that other programs pass to templates, or that Jinja2 itself defines.
///
/// # Source
///
/// transformers 5.23, `apply_chat_template` (its parameters, and the special tokens that it passes
/// to the template) and `_compile_jinja_template`; Jinja2 3.1, `defaults.DEFAULT_NAMESPACE` and its
/// reserved words.
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

/// A key of `data.chat_template_kwargs` that cannot be passed to a template.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TemplateKwargError {
    /// The name is reserved.
    #[error(
        "data.chat_template_kwargs.{name} cannot be set, because every program that renders \
         templates sets {name}; delete the key"
    )]
    Reserved {
        /// The key in `data.chat_template_kwargs`.
        name: String,
    },

    /// The key is not a valid variable name.
    #[error(
        "data.chat_template_kwargs.{name} is not a variable name; use letters, digits and \
         underscores, and do not begin with a digit"
    )]
    NoName {
        /// The key in `data.chat_template_kwargs`.
        name: String,
    },

    /// The template does not read this variable.
    #[error(
        "the chat template never reads data.chat_template_kwargs.{name}, so it would change nothing; \
         {advice}"
    )]
    NeverRead {
        /// The key in `data.chat_template_kwargs`.
        name: String,
        /// The nearest variable that the template reads, or all of them.
        advice: String,
    },
}

impl TemplateKwargError {
    /// Checks the name of a key without a template.
    ///
    /// # Errors
    ///
    /// - the name is reserved, or not a variable name
    pub fn check_name(name: &str) -> Result<(), Self> {
        let name = name.to_owned();
        let mut characters = name.chars();
        let begins = |c: char| c == '_' || c.is_ascii_alphabetic();
        let continues = |c: char| c == '_' || c.is_ascii_alphanumeric();
        if !characters.next().is_some_and(begins) || !characters.all(continues) {
            return Err(Self::NoName { name });
        }
        if RESERVED.contains(&&*name) || name.starts_with("tooltune_") {
            return Err(Self::Reserved { name });
        }
        Ok(())
    }
}

impl ChatTemplate {
    /// Passes additional variables to the template in every rendering.
    ///
    /// # Errors
    ///
    /// - a name is reserved, or not a variable name
    /// - the template never reads it
    pub fn with_kwargs(mut self, kwargs: Map<String, Value>) -> Result<Self, TemplateError> {
        for name in kwargs.keys() {
            TemplateKwargError::check_name(name)?;
            self.check_is_read(name)?;
        }
        self.variables = kwargs;
        Ok(self)
    }

    /// Makes the exported template insert this system message if the messages do not begin with a
    /// system message. It does not change the renderings of this type, which use only the given
    /// messages.
    #[must_use]
    pub fn with_served_system(self, text: Option<String>) -> Self {
        Self {
            served_system: text,
            ..self
        }
    }

    /// Returns the template source for export. Added lines at the top set the variables and the
    /// system message, unless the caller sets them.
    ///
    /// The added lines print nothing. They end with a line break that belongs to their last tag
    /// (`trim_blocks`), so the rest renders as at the beginning of a file.
    pub fn served_source(&self) -> String {
        let mut served = String::new();
        for (name, value) in &self.variables {
            let value = literal(value);
            // Writing to a string cannot fail.
            let _ = write!(
                served,
                "{{%- if {name} is not defined %}}{{%- set {name} = {value} %}}{{%- endif %}}"
            );
        }
        if let Some(text) = &self.served_system {
            let text = quote(text);
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

    fn check_is_read(&self, name: &str) -> Result<(), TemplateKwargError> {
        let variables = self.read_variables();
        if variables.iter().any(|variable| variable == name)
            || is_set_from_itself(&self.source, name)
        {
            return Ok(());
        }
        let near = variables
            .iter()
            .map(|variable| (strsim::damerau_levenshtein(variable, name), variable))
            .filter(|(distance, variable)| *distance <= variable.len().max(name.len()) / 3)
            .min();
        let advice = match near {
            Some((_, variable)) => format!("did you mean {variable}?"),
            None if variables.is_empty() => "it has no variables; delete the key".to_owned(),
            None => format!("its variables are {}", variables.join(", ")),
        };
        Err(TemplateKwargError::NeverRead {
            name: name.to_owned(),
            advice,
        })
    }

    /// Returns the variables that the template reads and that are not reserved, sorted.
    fn read_variables(&self) -> Vec<String> {
        let variables = python::syntax().map(|syntax| self.program.variables(syntax));
        let mut names: Vec<String> = variables
            .unwrap_or_default()
            .into_iter()
            .filter(|name| TemplateKwargError::check_name(name).is_ok())
            .collect();
        names.sort();
        names
    }
}

/// Whether a variable is set from itself, as in `set x = x if x is defined else true`. minijinja
/// does not list such a variable as read.
fn is_set_from_itself(source: &str, name: &str) -> bool {
    static SET: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"(?s)\{%[-+]?\s*set\s+(\w+)\s*=(.*?)%\}").ok());
    let is_word = |text: &str| {
        text.split(|c: char| c != '_' && !c.is_alphanumeric())
            .any(|word| word == name)
    };
    SET.as_ref().is_some_and(|set| {
        set.captures_iter(source)
            .any(|captures| &captures[1] == name && is_word(&captures[2]))
    })
}

/// Writes a value as a Jinja2 literal.
fn literal(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => quote(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(literal).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(fields) => {
            let field =
                |(key, value): (&String, &Value)| format!("{}: {}", quote(key), literal(value));
            let fields: Vec<String> = fields.iter().map(field).collect();
            format!("{{{}}}", fields.join(", "))
        }
        plain => json::dumps(plain, Style::Python),
    }
}

/// Writes a string literal. Non-ASCII characters are not escaped, because Jinja2 reads an escaped
/// surrogate pair as two characters.
fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            // Writing to a string cannot fail.
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}
