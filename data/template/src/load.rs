//! Loads the chat template and special tokens of a model directory in Hugging Face's layout.
//!
//! A model may have a second template, `tool_use`, which transformers uses for conversations with
//! tools. Both are combined into one template that chooses between them, so that the hash of a
//! run, its checkpoints and its exports cover both.

use std::path::Path;

use serde_json::Value;
use tooltune_disk::budgets::{Limit, TEMPLATE_BYTES};
use tooltune_disk::regular_file;
use tooltune_json as json;
use tooltune_json::ReadError;

use super::{ChatTemplate, SpecialTokens};
use crate::budgets::TOKENIZER_CONFIG_BYTES;
use crate::error::TemplateError;

impl ChatTemplate {
    /// Compiles a model's `default` template together with its `tool_use` template, which is used
    /// for conversations with tools. Otherwise like [`ChatTemplate::new`].
    ///
    /// # Errors
    ///
    /// As [`ChatTemplate::new`]; line numbers refer to the combined template.
    pub fn with_tool_use(
        default: &str,
        tool_use: &str,
        special: SpecialTokens,
    ) -> Result<Self, TemplateError> {
        Self::new(&combine(default, tool_use), special)
    }

    /// Loads the template of a model directory: `chat_template.jinja` if it exists, otherwise
    /// `chat_template` in `tokenizer_config.json`. If that field has several named templates,
    /// `tool_use` is used for conversations with tools, and `default` for all others. If
    /// `chat_template.jinja` exists, `tool_use` is a file in `additional_chat_templates`.
    ///
    /// Special tokens come from `tokenizer_config.json`, as strings or as added tokens.
    ///
    /// # Errors
    ///
    /// - neither file has a template
    /// - an existing file cannot be read, or `tokenizer_config.json` is not JSON
    /// - the template does not compile
    pub fn from_model_dir(dir: &Path) -> Result<Self, TemplateError> {
        let config_path = dir.join("tokenizer_config.json");
        let config = match read_if_present(&config_path, TOKENIZER_CONFIG_BYTES)? {
            None => Value::Null,
            Some(text) => json::parse(&text).map_err(|error| {
                TemplateError::NotJson { error }.at(&config_path.display().to_string())
            })?,
        };
        let template_path = dir.join("chat_template.jinja");
        let (default, tool_use, origin) = match read_if_present(&template_path, TEMPLATE_BYTES)? {
            Some(text) => {
                let tool_use = dir.join("additional_chat_templates/tool_use.jinja");
                (
                    Some(text),
                    read_if_present(&tool_use, TEMPLATE_BYTES)?,
                    template_path,
                )
            }
            None => {
                let config_source = |name| config_template(&config, name).map(str::to_owned);
                (
                    config_source("default"),
                    config_source("tool_use"),
                    config_path,
                )
            }
        };
        let Some(default) = default else {
            return Err(TemplateError::NoTemplate {
                path: dir.to_owned(),
            });
        };
        let special = special_tokens(&config);
        let origin = origin.display().to_string();
        match tool_use {
            Some(tool_use) => Self::with_tool_use(&default, &tool_use, special),
            None => Self::new(&default, special),
        }
        .map(|template| template.with_origin(&origin))
        .map_err(|error| error.at(&origin))
    }
}

/// Combines two templates into one that uses `tool_use` if there are tools, and `default`
/// otherwise.
///
/// The empty strings protect the white space at the borders, which a tag would strip. Jinja2's plus
/// signs would also protect it, but some engines that render exports do not support them. As in
/// Jinja2, the newline at the end of a file is not part of the template.
fn combine(default: &str, tool_use: &str) -> String {
    let text = |source: &str| {
        let source = source.strip_suffix('\n').unwrap_or(source);
        source.strip_suffix('\r').unwrap_or(source).to_owned()
    };
    format!(
        "{{% if tools %}}{{{{ '' }}}}{}{{{{ '' }}}}{{% else %}}{{{{ '' }}}}{}{{{{ '' }}}}{{% endif %}}",
        text(tool_use),
        text(default)
    )
}

fn read_if_present(path: &Path, limit: Limit) -> Result<Option<String>, TemplateError> {
    let unreadable = |error| TemplateError::from(ReadError::unreadable(path, error));
    if regular_file::is_there(path).map_err(unreadable)? {
        regular_file::read_text(path, limit)
            .map(Some)
            .map_err(unreadable)
    } else {
        Ok(None)
    }
}

fn config_template<'c>(config: &'c Value, name: &str) -> Option<&'c str> {
    match config.get("chat_template")? {
        Value::String(source) if name == "default" => Some(source),
        Value::Array(entries) => entries
            .iter()
            .find(|entry| entry.get("name").and_then(Value::as_str) == Some(name))?
            .get("template")?
            .as_str(),
        _ => None,
    }
}

fn special_tokens(config: &Value) -> SpecialTokens {
    let token = |name: &str| {
        let value = config.get(name)?;
        let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
        Some(text.to_owned())
    };
    SpecialTokens {
        bos_token: token("bos_token"),
        eos_token: token("eos_token"),
        unk_token: token("unk_token"),
        pad_token: token("pad_token"),
    }
}
