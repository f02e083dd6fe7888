//! The chat template and special tokens of a model directory in Hugging Face's layout.
//!
//! A model may have a second template, `tool_use`, which transformers takes for conversations with
//! tools. The decision to question: both become one template that chooses, so that the hash of a
//! run, its checkpoints and its exports hold both wherever they hold one.

use std::path::Path;

use serde_json::Value;

use super::{ChatTemplate, SpecialTokens};
use crate::budgets::{Limit, TEMPLATE_BYTES, TOKENIZER_CONFIG_BYTES};
use crate::json;
use crate::read_error::ReadError;
use crate::regular_file;
use crate::text::error::DataError;

impl ChatTemplate {
    /// Compiles the templates of a model that has one for conversations with tools, `tool_use`,
    /// beside its `default`, as [`ChatTemplate::new`] does a single one.
    ///
    /// # Errors
    ///
    /// As [`ChatTemplate::new`]; lines count in the template that both become.
    pub fn with_tool_use(
        default: &str,
        tool_use: &str,
        special: SpecialTokens,
    ) -> Result<Self, DataError> {
        Self::new(&choosing(default, tool_use), special)
    }

    /// Loads the template of a model directory: `chat_template.jinja` if there is one, else
    /// `chat_template` of `tokenizer_config.json`. Of several named ones it is `default`, and
    /// `tool_use` for conversations with tools, which stands in `additional_chat_templates` beside
    /// the first.
    ///
    /// Special tokens come from `tokenizer_config.json`, as texts or as added tokens.
    ///
    /// # Errors
    ///
    /// - neither file has a template
    /// - a file is there but cannot be read, or `tokenizer_config.json` is not JSON
    /// - the template does not compile
    pub fn from_model_dir(dir: &Path) -> Result<Self, DataError> {
        let config_path = dir.join("tokenizer_config.json");
        let config = match read_if_present(&config_path, TOKENIZER_CONFIG_BYTES)? {
            None => Value::Null,
            Some(text) => json::parse(&text).map_err(|error| {
                DataError::NotJson { error }.at(&config_path.display().to_string())
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
                let named = |name| config_template(&config, name).map(str::to_owned);
                (named("default"), named("tool_use"), config_path)
            }
        };
        let Some(default) = default else {
            return Err(DataError::NoTemplate {
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

/// One template that is `tool_use` where there are tools and `default` elsewhere.
///
/// The empty texts keep the white space at the borders, which a tag would take; not every engine
/// that reads exports knows Jinja2's plus signs for that. The newline at the end of a file is none
/// of its text, as in Jinja2.
fn choosing(default: &str, tool_use: &str) -> String {
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

fn read_if_present(path: &Path, limit: Limit) -> Result<Option<String>, DataError> {
    let unreadable = |error| DataError::from(ReadError::unreadable(path, error));
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
        Value::Array(named) => named
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
