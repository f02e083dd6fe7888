//! What belongs to a merged model beside its weights: config, tokenizer and chat template.
//!
//! The files of a Hugging Face directory are copied byte for byte, but for BPE-dropout, which was off
//! in training and is so in the copy, and for what a language model that was part of another model needs
//! as a model of its own. For a GGUF base they are written
//! from its metadata, but for `tokenizer.json`, which this crate cannot make of a vocabulary.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::MergeOptions;
use crate::atomic::write_file;
use crate::budgets::{JSON_BYTES, TOKENIZER_BYTES};
use crate::error::CheckpointError;
use crate::families::{AutoTokenizer, Family};
use crate::model_files::{ModelFiles, TokenizerSource, text_part, tokenizer_without_dropout};
use crate::prompt_files::CHAT_TEMPLATE;
use crate::regular_file;

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// Files that are taken over as they are, where the base has them; those of the tokenizer behind the
/// first.
const COPIED: [&str; 10] = [
    "generation_config.json",
    TOKENIZER,
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.json",
];

/// Writes the companion files of the model at `base` into `dir`.
pub(super) fn write(
    dir: &Path,
    base: &Path,
    files: &ModelFiles,
    options: &MergeOptions<'_>,
) -> Result<(), CheckpointError> {
    match home(base)? {
        Some(home) => copy(dir, &home, files, options)?,
        None => write_from_gguf(dir, files, options)?,
    }
    options
        .prompts
        .map_or(Ok(()), |prompts| prompts.write(dir))?;
    let mut beside = options.beside.into_iter().flatten();
    beside.try_for_each(|(name, bytes)| write_file(&dir.join(name), bytes))
}

/// The files of the base at this path that its tokenizer needs, by their names; none of a GGUF file.
///
/// # Errors
///
/// - a file that cannot be read
pub fn tokenizer_files(base: &Path) -> Result<BTreeMap<String, Vec<u8>>, CheckpointError> {
    let Some(home) = home(base)? else {
        return Ok(BTreeMap::new());
    };
    let mut files = BTreeMap::new();
    for name in COPIED.into_iter().skip(1) {
        let path = home.join(name);
        if regular_file::is_there(&path)? {
            files.insert(name.to_owned(), companion(&path, name)?);
        }
    }
    Ok(files)
}

/// A file of the base as it is copied.
fn companion(path: &Path, name: &str) -> Result<Vec<u8>, CheckpointError> {
    if name == TOKENIZER {
        tokenizer_without_dropout(path)
    } else {
        Ok(regular_file::read(path, TOKENIZER_BYTES)?)
    }
}

/// The directory with the base's `config.json`; `None` for GGUF files, which carry their own.
fn home(base: &Path) -> Result<Option<PathBuf>, CheckpointError> {
    if base.extension().is_some_and(|e| e == "gguf") {
        return Ok(None);
    }
    let dir = if base.is_dir() {
        base
    } else {
        base.parent().unwrap_or(Path::new("."))
    };
    let is_there = regular_file::is_there(&dir.join(CONFIG))?;
    Ok(is_there.then(|| dir.to_owned()))
}

/// The chat template that takes the place of the base's.
fn of_training<'a>(options: &MergeOptions<'a>) -> Option<&'a str> {
    options.prompts?.chat_template.as_deref()
}

fn copy(
    dir: &Path,
    home: &Path,
    files: &ModelFiles,
    options: &MergeOptions<'_>,
) -> Result<(), CheckpointError> {
    let config_path = home.join(CONFIG);
    let mut class = None;
    let config = regular_file::read(&config_path, JSON_BYTES)?;
    if files.weights.is_gguf() {
        let mut fields: Map<String, Value> =
            serde_json::from_slice(&config).map_err(CheckpointError::json(&config_path))?;
        let dtype = options.gguf_dtype.torch_name();
        // Both spellings where both stand.
        let keys = ["dtype", "torch_dtype"].map(|key| (key, fields.contains_key(key)));
        let has_one = keys.iter().any(|(_, is_there)| *is_there);
        for (key, is_there) in keys {
            if is_there || (!has_one && key == "torch_dtype") {
                fields.insert(key.to_owned(), dtype.into());
            }
        }
        write_json(&dir.join(CONFIG), &Value::Object(fields))?;
    } else if is_with_pictures(&config) {
        // The language model alone is a model of its own.
        write_json(&dir.join(CONFIG), &files.config)?;
        class = Family::of_config(&files.config).and_then(own_tokenizer);
    } else {
        write_file(&dir.join(CONFIG), &config)?
    }
    let template = of_training(options).is_none().then_some(CHAT_TEMPLATE);
    let names = COPIED.into_iter().chain(template);
    for name in names {
        let path = home.join(name);
        if !regular_file::is_there(&path)? {
            continue;
        }
        let mut bytes = companion(&path, name)?;
        if let Some(class) = class.filter(|_| name == TOKENIZER_CONFIG) {
            bytes = with_class(&path, &bytes, class)?;
        }
        write_file(&dir.join(name), &bytes)?;
    }
    Ok(())
}

/// Whether this config.json is that of a model that reads pictures, too.
/// The class of tokenizer that transformers takes for a family, whatever the files name.
fn own_tokenizer(family: &Family) -> Option<&'static str> {
    match family.auto_tokenizer {
        AutoTokenizer::Always(class) => Some(class),
        AutoTokenizer::Named | AutoTokenizer::OfFile => None,
    }
}

/// A tokenizer_config.json that names `class`: for the whole model transformers took it by the model's
/// type, and for the language model alone it takes the class that stands there.
fn with_class(path: &Path, bytes: &[u8], class: &str) -> Result<Vec<u8>, CheckpointError> {
    let mut fields: Map<String, Value> =
        serde_json::from_slice(bytes).map_err(CheckpointError::json(path))?;
    fields.insert("tokenizer_class".to_owned(), class.into());
    serde_json::to_vec_pretty(&fields).map_err(CheckpointError::json(path))
}

fn is_with_pictures(config: &[u8]) -> bool {
    serde_json::from_slice(config).is_ok_and(|whole| text_part::of_config(&whole).is_some())
}

fn write_from_gguf(
    dir: &Path,
    files: &ModelFiles,
    options: &MergeOptions<'_>,
) -> Result<(), CheckpointError> {
    let mut config = files.config.as_object().cloned().unwrap_or_default();
    if let Some(family) = Family::of_config(&files.config) {
        config.insert("architectures".to_owned(), json!([family.class]));
    }
    let dtype = options.gguf_dtype.torch_name();
    config.insert("torch_dtype".to_owned(), dtype.into());
    let mut generation = Map::new();
    if let TokenizerSource::Gguf(vocabulary) = &files.tokenizer
        && let Some(bos) = vocabulary.bos_token_id
    {
        config.insert("bos_token_id".to_owned(), bos.into());
        generation.insert("bos_token_id".to_owned(), bos.into());
    }
    let eos = match files.eos_token_ids.as_slice() {
        [] => Value::Null,
        [one] => (*one).into(),
        several => json!(several),
    };
    config.insert("eos_token_id".to_owned(), eos.clone());
    generation.insert("eos_token_id".to_owned(), eos);
    write_json(&dir.join(CONFIG), &Value::Object(config))?;
    write_json(
        &dir.join("generation_config.json"),
        &Value::Object(generation),
    )?;
    write_tokenizer(dir, files, options)?;
    match (&files.chat_template, of_training(options)) {
        (Some(template), None) => write_file(&dir.join(CHAT_TEMPLATE), template.as_bytes()),
        _ => Ok(()),
    }
}

fn write_tokenizer(
    dir: &Path,
    files: &ModelFiles,
    options: &MergeOptions<'_>,
) -> Result<(), CheckpointError> {
    let bytes = match (options.tokenizer_json, &files.tokenizer) {
        (Some(text), _) => text.as_bytes().to_vec(),
        (None, TokenizerSource::Json(path)) => tokenizer_without_dropout(path)?,
        (None, TokenizerSource::Gguf(_)) => {
            return Err(CheckpointError::Unsupported {
                path: files.weights.origin().to_owned(),
                feature: "merging a GGUF model without its tokenizer.json".to_owned(),
                fix: "give the tokenizer as JSON, or merge into the model's safetensors directory",
            });
        }
    };
    write_file(&dir.join(TOKENIZER), &bytes)?;
    let special = &files.special_tokens;
    let mut fields = Map::new();
    fields.insert(
        "tokenizer_class".to_owned(),
        "PreTrainedTokenizerFast".into(),
    );
    fields.insert("clean_up_tokenization_spaces".to_owned(), false.into());
    let length = files.config["max_position_embeddings"].clone();
    fields.insert("model_max_length".to_owned(), length);
    for (role, token) in [
        ("bos_token", &special.bos_token),
        ("eos_token", &special.eos_token),
        ("pad_token", &special.pad_token),
        ("unk_token", &special.unk_token),
    ] {
        if let Some(token) = token {
            fields.insert(role.to_owned(), token.as_str().into());
        }
    }
    write_json(&dir.join("tokenizer_config.json"), &Value::Object(fields))
}

/// Writes `value` indented, with a newline at the end.
pub(super) fn write_json(path: &Path, value: &Value) -> Result<(), CheckpointError> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(CheckpointError::json(path))?;
    bytes.push(b'\n');
    write_file(path, &bytes)
}
