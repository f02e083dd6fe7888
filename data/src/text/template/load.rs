//! The chat template and special tokens of a model directory in Hugging Face's layout.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{ChatTemplate, SpecialTokens};
use crate::json;
use crate::text::error::DataError;

impl ChatTemplate {
    /// Loads the template of a model directory: `chat_template.jinja` if there is one, else
    /// `chat_template` of `tokenizer_config.json` (of several named ones, `default`).
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
        let config = match read_if_present(&config_path)? {
            None => Value::Null,
            Some(text) => json::parse(&text).map_err(|error| {
                DataError::NotJson { error }.at(&config_path.display().to_string())
            })?,
        };
        let template_path = dir.join("chat_template.jinja");
        let (source, origin) = match read_if_present(&template_path)? {
            Some(text) => (text, template_path),
            None => match config_template(&config) {
                Some(text) => (text.to_owned(), config_path),
                None => {
                    return Err(DataError::NoTemplate {
                        path: dir.to_owned(),
                    });
                }
            },
        };
        Self::new(&source, special_tokens(&config))
            .map_err(|error| error.at(&origin.display().to_string()))
    }
}

fn read_if_present(path: &Path) -> Result<Option<String>, DataError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(DataError::Unreadable {
            path: path.to_owned(),
            error,
        }),
    }
}

fn config_template(config: &Value) -> Option<&str> {
    match config.get("chat_template")? {
        Value::String(source) => Some(source),
        Value::Array(named) => named
            .iter()
            .find(|entry| entry.get("name").and_then(Value::as_str) == Some("default"))?
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
