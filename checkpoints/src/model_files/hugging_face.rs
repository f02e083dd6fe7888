//! Reads a directory written by `save_pretrained`: config.json, tokenizer files, weights.
//!
//! Only the required fields are read, so files of any transformers version are accepted. These
//! fields must have the right type.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tooltune_disk::budgets::TEMPLATE_BYTES;

use super::tokenizer_files::TokenizerFiles;
use super::{ModelFiles, SpecialTokenIds, TokenizerSource, bitsandbytes_config, rope, text_part};
use crate::budgets::JSON_BYTES;
use crate::error::CheckpointError;
use crate::families::Family;
use crate::regular_file;
use crate::weights::Weights;

pub(super) fn open(dir: &Path) -> Result<ModelFiles, CheckpointError> {
    let weights = Weights::open(dir)?;
    let dir = if dir.is_dir() {
        dir
    } else {
        dir.parent().unwrap_or(Path::new("."))
    };
    let config_path = dir.join("config.json");
    let (config, is_nf4) = config_without_nf4(&config_path)?;
    bitsandbytes_config::check(&config_path, is_nf4, &weights)?;
    check_tied_head(&config_path, &config, &weights)?;
    let tokenizer = dir.join("tokenizer.json");
    if !regular_file::is_there(&tokenizer)? {
        let absent = std::io::Error::new(
            std::io::ErrorKind::NotFound,
            "not found; save it with AutoTokenizer.from_pretrained(...).save_pretrained(directory)",
        );
        return Err(CheckpointError::io("open", &tokenizer)(absent));
    }
    let tokenizer_files = TokenizerFiles::read(dir, &tokenizer, &config)?;
    let generation_path = dir.join("generation_config.json");
    let generation = object_if_present(&generation_path)?.unwrap_or_default();
    let eos_token_ids = eos_token_ids([(&generation_path, &generation), (&config_path, &config)])?;
    let (chat_template, tool_use_template) = chat_templates(dir, &tokenizer_files)?;
    let left_out = omitted_tensors_remark(&config_path, &weights);
    let quantised = bitsandbytes_config::remark(&weights);
    Ok(ModelFiles {
        weights,
        tokenizer: TokenizerSource::Json(tokenizer),
        chat_template,
        tool_use_template,
        special_tokens: tokenizer_files.special_tokens()?,
        special_token_ids: SpecialTokenIds::default(),
        added_tokens: tokenizer_files.added_tokens()?,
        eos_token_ids,
        choices: sampling_settings(&generation),
        remarks: tokenizer_files
            .remark(&config)
            .into_iter()
            .chain(left_out)
            .chain(quantised)
            .collect(),
        config: Value::Object(config),
    })
}

/// A remark about tensors that do not belong to the language model. `path` is the file named in it.
pub(super) fn omitted_tensors_remark(path: &Path, weights: &Weights) -> Option<String> {
    let counts = [
        (weights.n_vision(), "of the vision model"),
        (
            weights.n_prediction(),
            "that predict tokens after the next one (mtp)",
        ),
    ];
    let counts = counts.into_iter().filter(|(n, _)| *n > 0);
    let counts: Vec<String> = counts
        .map(|(n, description)| format!("{n} tensors {description}"))
        .collect();
    (!counts.is_empty()).then(|| {
        format!(
            "{}: only the language model is read; {} are left out",
            path.display(),
            counts.join(" and ")
        )
    })
}

/// The fields of a `config.json`, with RoPE settings in one format and family defaults for absent
/// fields. For a vision-language model, the fields of its language model. A `quantization_config`
/// of NF4 weights is left out.
pub(super) fn config(path: &Path) -> Result<Map<String, Value>, CheckpointError> {
    config_without_nf4(path).map(|(config, _)| config)
}

/// As [`config`], and whether there was a `quantization_config` of NF4 weights.
pub(super) fn config_without_nf4(
    path: &Path,
) -> Result<(Map<String, Value>, bool), CheckpointError> {
    let mut config = object(path)?;
    if let Some(text) = text_part::language_model_config(&config) {
        config = text;
    }
    rope::normalise(path, &mut config)?;
    let is_nf4 = bitsandbytes_config::take(path, &mut config)?;
    let family = config.get("model_type").and_then(Value::as_str);
    let Some(family) = family.and_then(Family::of_model_type) else {
        return Ok((config, is_nf4));
    };
    for (key, number) in family.config.defaults {
        let key = (*key).to_owned();
        config.entry(key).or_insert_with(|| number.value());
    }
    if family.config.default_tie {
        let tie = "tie_word_embeddings".to_owned();
        config.entry(tie).or_insert(Value::Bool(true));
    }
    Ok((config, is_nf4))
}

/// Refuses a config that ties the head to the embedding although the weights contain a different
/// head.
///
/// # Source
///
/// huggingface/transformers 5.23, `modeling_utils.py`, `tie_weights`, does not tie two tensors that
/// differ; vllm-project/vllm, `models/llama.py`, ignores the head.
fn check_tied_head(
    config_path: &Path,
    config: &Map<String, Value>,
    weights: &Weights,
) -> Result<(), CheckpointError> {
    let [embedding, head] = ["model.embed_tokens.weight", "lm_head.weight"];
    let has = |name| weights.shape(name).is_some();
    if config.get("tie_word_embeddings") != Some(&Value::Bool(true))
        || !has(embedding)
        || !has(head)
    {
        return Ok(());
    }
    let Some(element) = weights.first_difference(embedding, head)? else {
        return Ok(());
    };
    let problem = format!(
        "is true, but the weights contain a {head} that differs from {embedding} in element \
         {element}; transformers uses that head and vLLM ignores it: set the field to false to \
         keep the head, or remove the tensor"
    );
    Err(CheckpointError::field(
        config_path,
        "tie_word_embeddings",
        problem,
    ))
}

fn object(path: &Path) -> Result<Map<String, Value>, CheckpointError> {
    let text = regular_file::read(path, JSON_BYTES)?;
    serde_json::from_slice(&text).map_err(CheckpointError::json(path))
}

pub(super) fn object_if_present(
    path: &Path,
) -> Result<Option<Map<String, Value>>, CheckpointError> {
    if regular_file::is_there(path)? {
        object(path).map(Some)
    } else {
        Ok(None)
    }
}

/// Settings of generation_config.json that change how transformers selects tokens, each with its
/// neutral value.
const SAMPLING_SETTINGS: [(&str, f64); 12] = [
    ("do_sample", 0.0),
    ("temperature", 1.0),
    ("top_k", 0.0),
    ("top_p", 1.0),
    ("min_p", 0.0),
    ("typical_p", 1.0),
    ("repetition_penalty", 1.0),
    ("no_repeat_ngram_size", 0.0),
    ("num_beams", 1.0),
    ("min_new_tokens", 0.0),
    ("suppress_tokens", 0.0),
    ("bad_words_ids", 0.0),
];

/// The settings of a generation_config.json that change which tokens are selected, as "key =
/// value".
fn sampling_settings(generation: &Map<String, Value>) -> Vec<String> {
    let number_of = |value: &Value| match value {
        Value::Null => Some(None),
        Value::Bool(flag) => Some(Some(f64::from(*flag))),
        Value::Number(number) => Some(number.as_f64()),
        Value::Array(items) if items.is_empty() => Some(None),
        _ => None,
    };
    let changed = SAMPLING_SETTINGS.iter().filter_map(|(key, neutral)| {
        let value = generation.get(*key)?;
        match number_of(value) {
            Some(None) => None,
            Some(Some(number)) if number == *neutral => None,
            _ => Some(format!("{key} = {value}")),
        }
    });
    changed.collect()
}

/// IDs from the first file that has any, as one ID or a list.
fn eos_token_ids(files: [(&PathBuf, &Map<String, Value>); 2]) -> Result<Vec<u32>, CheckpointError> {
    for (path, fields) in files {
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

/// The default template, and the template for conversations with tools.
type Templates = (Option<String>, Option<String>);

/// The chat templates of a folder.
///
/// The templates are in chat_template.jinja and the folder additional_chat_templates. Without
/// these, the string or list of named templates in tokenizer_config.json is used. A template in
/// special_tokens_map.json has precedence if that file is used.
///
/// # Source
///
/// huggingface/transformers 5.23, `tokenization_utils_base.py`, `_from_pretrained`.
fn chat_templates(dir: &Path, files: &TokenizerFiles) -> Result<Templates, CheckpointError> {
    let key = "chat_template";
    if !files.is_from_map(key)
        && let Some(templates) = template_files(dir)?
    {
        return Ok(templates);
    }
    let (path, value) = files.setting(key);
    let wrong = |problem: &str| CheckpointError::field(path, key, problem);
    let source = |entry: &Value, problem: &str| match entry["template"].as_str() {
        Some(template) => Ok(template.to_owned()),
        None => Err(wrong(problem)),
    };
    match value {
        None | Some(Value::Null) => Ok((None, None)),
        Some(Value::String(template)) => Ok((Some(template.clone()), None)),
        Some(Value::Array(templates)) => {
            let find_template = |name: &str| templates.iter().find(|entry| entry["name"] == name);
            let default = find_template("default")
                .ok_or_else(|| wrong("has no template named \"default\""))?;
            let default = source(default, "its default has no string `template`")?;
            let tool_use = find_template("tool_use")
                .map(|entry| source(entry, "its tool_use has no string `template`"))
                .transpose()?;
            Ok((Some(default), tool_use))
        }
        Some(_) => Err(wrong("must be a string or a list of named templates")),
    }
}

/// The templates in separate files, if any. The default template of the folder has precedence over
/// chat_template.jinja.
fn template_files(dir: &Path) -> Result<Option<Templates>, CheckpointError> {
    let folder = dir.join("additional_chat_templates");
    let read_template = |path: PathBuf| {
        if regular_file::is_there(&path)? {
            regular_file::read_text(&path, TEMPLATE_BYTES).map(Some)
        } else {
            Ok(None)
        }
    };
    let tool_use = read_template(folder.join("tool_use.jinja"))?;
    let default = match read_template(folder.join("default.jinja"))? {
        Some(default) => Some(default),
        None => read_template(dir.join("chat_template.jinja"))?,
    };
    match (default, tool_use) {
        (None, None) => Ok(None),
        (None, Some(_)) => {
            let problem = "contains tool_use.jinja but no default, so transformers finds no \
                           other template; save the default as chat_template.jinja";
            Err(CheckpointError::field(
                dir,
                "additional_chat_templates",
                problem,
            ))
        }
        templates => Ok(Some(templates)),
    }
}
