//! A directory as `save_pretrained` writes it: config.json, tokenizer files, weights.
//!
//! Only fields that are needed are read, by name, so that files of any transformers version
//! pass; those that are read must have the right type.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

use super::{ModelFiles, SpecialTokens, TokenizerSource, rope};
use crate::error::CheckpointError;
use crate::weights::Weights;

pub(super) fn open(dir: &Path) -> Result<ModelFiles, CheckpointError> {
    let weights = Weights::open(dir)?;
    let dir = if dir.is_dir() {
        dir
    } else {
        dir.parent().unwrap_or(Path::new("."))
    };
    let config_path = dir.join("config.json");
    let config = config(&config_path)?;
    let tokenizer = dir.join("tokenizer.json");
    if !tokenizer.is_file() {
        let absent = std::io::Error::new(
            std::io::ErrorKind::NotFound,
            "not there; save it with AutoTokenizer.from_pretrained(...).save_pretrained(directory)",
        );
        return Err(CheckpointError::io("open", &tokenizer)(absent));
    }
    let tokenizer_config_path = dir.join("tokenizer_config.json");
    let tokenizer_config = object_if_present(&tokenizer_config_path)?.unwrap_or_default();
    let eos_token_ids = eos_token_ids(dir, &config_path, &config)?;
    let (chat_template, tool_use_template) =
        chat_templates(dir, &tokenizer_config_path, &tokenizer_config)?;
    Ok(ModelFiles {
        weights,
        tokenizer: TokenizerSource::Json(tokenizer),
        chat_template,
        tool_use_template,
        special_tokens: special_tokens(dir, &tokenizer_config_path, &tokenizer_config)?,
        eos_token_ids,
        config: Value::Object(config),
    })
}

/// The fields of a `config.json`, rotary settings in one spelling.
pub(super) fn config(path: &Path) -> Result<Map<String, Value>, CheckpointError> {
    let mut config = object(path)?;
    rope::normalise(path, &mut config)?;
    Ok(config)
}

fn object(path: &Path) -> Result<Map<String, Value>, CheckpointError> {
    let text = fs::read(path).map_err(CheckpointError::io("read", path))?;
    serde_json::from_slice(&text).map_err(CheckpointError::json(path))
}

fn object_if_present(path: &Path) -> Result<Option<Map<String, Value>>, CheckpointError> {
    if path.is_file() {
        object(path).map(Some)
    } else {
        Ok(None)
    }
}

/// Ids from generation_config.json, else from config.json; each may be one id or a list.
fn eos_token_ids(
    dir: &Path,
    config_path: &Path,
    config: &Map<String, Value>,
) -> Result<Vec<u32>, CheckpointError> {
    let generation_path = dir.join("generation_config.json");
    let generation = object_if_present(&generation_path)?.unwrap_or_default();
    for (path, fields) in [
        (generation_path.as_path(), &generation),
        (config_path, config),
    ] {
        let value = fields.get("eos_token_id").unwrap_or(&Value::Null);
        if !value.is_null() {
            return token_ids(value).ok_or_else(|| {
                let problem = format!("{value} must be a token id or a list of token ids");
                CheckpointError::field(path, "eos_token_id", problem)
            });
        }
    }
    Ok(Vec::new())
}

fn token_ids(value: &Value) -> Option<Vec<u32>> {
    let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
    match value {
        Value::Array(values) => values.iter().map(id).collect(),
        _ => id(value).map(|id| vec![id]),
    }
}

/// The default template, and that for conversations with tools.
///
/// They are chat_template.jinja and additional_chat_templates/tool_use.jinja; without the first,
/// what tokenizer_config.json has, a string or a list of named templates.
fn chat_templates(
    dir: &Path,
    config_path: &Path,
    config: &Map<String, Value>,
) -> Result<(Option<String>, Option<String>), CheckpointError> {
    let read = |path: &Path| {
        fs::read_to_string(path)
            .map(Some)
            .map_err(CheckpointError::io("read", path))
    };
    let jinja = dir.join("chat_template.jinja");
    if jinja.is_file() {
        let tool_use = dir.join("additional_chat_templates/tool_use.jinja");
        let tool_use = match tool_use.is_file() {
            true => read(&tool_use)?,
            false => None,
        };
        return Ok((read(&jinja)?, tool_use));
    }
    let wrong = |problem: &str| CheckpointError::field(config_path, "chat_template", problem);
    let source = |entry: &Value, problem: &str| match entry["template"].as_str() {
        Some(template) => Ok(template.to_owned()),
        None => Err(wrong(problem)),
    };
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok((None, None)),
        Some(Value::String(template)) => Ok((Some(template.clone()), None)),
        Some(Value::Array(templates)) => {
            let named = |name: &str| templates.iter().find(|entry| entry["name"] == name);
            let default =
                named("default").ok_or_else(|| wrong("has no template named \"default\""))?;
            let default = source(default, "its default lacks a string `template`")?;
            let tool_use = named("tool_use")
                .map(|entry| source(entry, "its tool_use lacks a string `template`"))
                .transpose()?;
            Ok((Some(default), tool_use))
        }
        Some(_) => Err(wrong("must be a string or a list of named templates")),
    }
}

/// Tokens of tokenizer_config.json, each missing one from special_tokens_map.json.
fn special_tokens(
    dir: &Path,
    config_path: &Path,
    config: &Map<String, Value>,
) -> Result<SpecialTokens, CheckpointError> {
    let map_path = dir.join("special_tokens_map.json");
    let map = object_if_present(&map_path)?.unwrap_or_default();
    let token = |role: &str| {
        for (path, fields) in [(config_path, config), (map_path.as_path(), &map)] {
            if let Some(token) = token_text(path, fields, role)? {
                return Ok(Some(token));
            }
        }
        Ok(None)
    };
    Ok(SpecialTokens {
        bos_token: token("bos_token")?,
        eos_token: token("eos_token")?,
        pad_token: token("pad_token")?,
        unk_token: token("unk_token")?,
    })
}

/// A token is a string or an object with `content`.
fn token_text(
    path: &Path,
    fields: &Map<String, Value>,
    role: &str,
) -> Result<Option<String>, CheckpointError> {
    let value = match fields.get(role) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Object(token)) => token.get("content").unwrap_or(&Value::Null),
        Some(value) => value,
    };
    match value.as_str() {
        Some(text) => Ok(Some(text.to_owned())),
        None => {
            let problem = "must be a string or an object with a string `content`";
            Err(CheckpointError::field(path, role, problem))
        }
    }
}
