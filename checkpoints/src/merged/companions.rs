//! The companion files of a merged model: config, tokenizer and chat template.
//!
//! The files of a Hugging Face directory are copied byte for byte, with three exceptions. BPE dropout
//! is switched off, as it was in training. The language model of a vision-language model gets the
//! files of a standalone model. The `quantization_config` describes the written weights: it is removed
//! if they are not quantised, and added if they are in NF4. For a GGUF base the files are written from its metadata, except
//! `tokenizer.json`, which this crate cannot derive from a vocabulary.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tooltune_disk::atomic::write_file;
use tooltune_disk::budgets::TOKENIZER_BYTES;

use super::MergeOptions;
use crate::budgets::JSON_BYTES;
use crate::config_types::{convert_numbers, wrong_types};
use crate::error::CheckpointError;
use crate::families::{AutoTokenizer, Family};
use crate::model_files::gguf_linear::MROPE_SECTION;
use crate::model_files::{ModelFiles, TokenizerSource, text_part, tokenizer_without_dropout};
use crate::prompt_files::CHAT_TEMPLATE;
use crate::regular_file;

const CONFIG: &str = "config.json";
const QUANTIZATION_CONFIG: &str = "quantization_config";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// Files that are copied unchanged if the base has them. All except the first belong to the
/// tokenizer.
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
    match config_dir(base)? {
        Some(home) => copy(dir, &home, files, options)?,
        None => write_from_gguf(dir, files, options)?,
    }
    options
        .prompts
        .map_or(Ok(()), |prompts| prompts.write(dir))?;
    let mut extra_files = options.extra_files.into_iter().flatten();
    Ok(extra_files.try_for_each(|(name, bytes)| write_file(&dir.join(name), bytes))?)
}

/// The tokenizer files of the base at this path, by name; empty for a GGUF file.
///
/// # Errors
///
/// A file cannot be read.
pub fn tokenizer_files(base: &Path) -> Result<BTreeMap<String, Vec<u8>>, CheckpointError> {
    let Some(home) = config_dir(base)? else {
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

/// Reads a companion file as it will be written.
fn companion(path: &Path, name: &str) -> Result<Vec<u8>, CheckpointError> {
    if name == TOKENIZER {
        tokenizer_without_dropout(path)
    } else {
        Ok(regular_file::read(path, TOKENIZER_BYTES)?)
    }
}

/// The directory of the base's `config.json`; `None` for GGUF files, which contain their config.
fn config_dir(base: &Path) -> Result<Option<PathBuf>, CheckpointError> {
    if base.extension().is_some_and(|e| e == "gguf") {
        return Ok(None);
    }
    let dir = if base.is_dir() {
        base
    } else {
        base.parent().unwrap_or(Path::new("."))
    };
    let exists = regular_file::is_there(&dir.join(CONFIG))?;
    Ok(exists.then(|| dir.to_owned()))
}

/// The chat template used in training, which replaces the base's template.
fn training_template<'a>(options: &MergeOptions<'a>) -> Option<&'a str> {
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
        // Write each key that the base uses.
        let keys = ["dtype", "torch_dtype"].map(|key| (key, fields.contains_key(key)));
        let has_one = keys.iter().any(|(_, exists)| *exists);
        for (key, exists) in keys {
            if exists || (!has_one && key == "torch_dtype") {
                fields.insert(key.to_owned(), dtype.into());
            }
        }
        write_config(dir, fields, files, options)?;
    } else if is_vision_model(&config) {
        // The language model becomes a standalone model.
        let fields = files.config.as_object().cloned().unwrap_or_default();
        write_config(dir, fields, files, options)?;
        class = Family::of_config(&files.config).and_then(required_tokenizer_class);
    } else {
        let parsed: Value =
            serde_json::from_slice(&config).map_err(CheckpointError::json(&config_path))?;
        match parsed {
            Value::Object(mut fields)
                if files.weights.n_nf4() > 0
                    || options.quantised.is_some()
                    || !wrong_types(&files.config).is_empty() =>
            {
                fields.remove(QUANTIZATION_CONFIG);
                write_config(dir, fields, files, options)?;
            }
            _ => write_file(&dir.join(CONFIG), &config)?,
        }
    }
    let template = training_template(options)
        .is_none()
        .then_some(CHAT_TEMPLATE);
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

/// Writes `config.json`. Older versions of transformers load configs that the current version
/// refuses, so the numbers are converted.
fn write_config(
    dir: &Path,
    mut fields: Map<String, Value>,
    files: &ModelFiles,
    options: &MergeOptions<'_>,
) -> Result<(), CheckpointError> {
    convert_numbers(&mut fields);
    if let Some(quantised) = options.quantised {
        let quantization = quantised.quantization_config(&files.weights);
        fields.insert(QUANTIZATION_CONFIG.to_owned(), quantization);
    }
    write_json(&dir.join(CONFIG), &Value::Object(fields))
}

/// The tokenizer class that transformers always chooses for a family, regardless of the files.
fn required_tokenizer_class(family: &Family) -> Option<&'static str> {
    match family.auto_tokenizer {
        AutoTokenizer::Always(class) => Some(class),
        AutoTokenizer::Named | AutoTokenizer::OfFile => None,
    }
}

/// A tokenizer_config.json that names `class`. transformers chooses the class of a vision-language
/// model by its model type, but the class of a standalone language model by this file.
fn with_class(path: &Path, bytes: &[u8], class: &str) -> Result<Vec<u8>, CheckpointError> {
    let mut fields: Map<String, Value> =
        serde_json::from_slice(bytes).map_err(CheckpointError::json(path))?;
    fields.insert("tokenizer_class".to_owned(), class.into());
    serde_json::to_vec_pretty(&fields).map_err(CheckpointError::json(path))
}

fn is_vision_model(config: &[u8]) -> bool {
    serde_json::from_slice(config)
        .is_ok_and(|value| text_part::language_model_config(&value).is_some())
}

/// The `config.json` of a merged folder whose base is a GGUF file.
///
/// # Errors
///
/// A number does not have the type that transformers declares.
pub(super) fn config_of_gguf(
    files: &ModelFiles,
    options: &MergeOptions<'_>,
) -> Result<Map<String, Value>, CheckpointError> {
    let mut config = files.config.as_object().cloned().unwrap_or_default();
    if let Some(family) = Family::of_config(&files.config) {
        config.insert("architectures".to_owned(), json!([family.class]));
    }
    let dtype = options.gguf_dtype.torch_name();
    config.insert("torch_dtype".to_owned(), dtype.into());
    // If the key were absent, transformers would use the family's default ID. In this vocabulary,
    // that ID may be a different token or not exist.
    for (key, id) in special_ids(files) {
        config.insert(key.to_owned(), id);
    }
    nest_sections(&mut config);
    convert_numbers(&mut config);
    match wrong_types(&Value::Object(config.clone())).first() {
        None => Ok(config),
        Some(wrong) => Err(CheckpointError::Unsupported {
            path: files.weights.origin().to_owned(),
            feature: format!("a merged folder of this GGUF file: {wrong}"),
            fix: "use the model's safetensors directory, or export --to gguf --merged",
        }),
    }
}

/// Moves `mrope_section` into `rope_scaling`, the table from which transformers reads it.
fn nest_sections(config: &mut Map<String, Value>) {
    let Some(sections) = config.remove(MROPE_SECTION) else {
        return;
    };
    let scaling = config.entry("rope_scaling").or_insert(Value::Null);
    if scaling.is_null() {
        *scaling = json!({ "rope_type": "default" });
    }
    scaling[MROPE_SECTION] = sections;
    // All families with sections that GGUF supports use this layout.
    scaling["mrope_interleaved"] = true.into();
}

/// The special-token IDs in a GGUF file, by the keys of `config.json`; null if absent.
fn special_ids(files: &ModelFiles) -> [(&'static str, Value); 3] {
    let ids = files.special_token_ids;
    let eos = match files.eos_token_ids.as_slice() {
        [] => Value::Null,
        [one] => (*one).into(),
        several => json!(several),
    };
    [
        ("bos_token_id", json!(ids.bos)),
        ("eos_token_id", eos),
        ("pad_token_id", json!(ids.pad)),
    ]
}

fn write_from_gguf(
    dir: &Path,
    files: &ModelFiles,
    options: &MergeOptions<'_>,
) -> Result<(), CheckpointError> {
    write_config(dir, config_of_gguf(files, options)?, files, options)?;
    let ids = special_ids(files)
        .into_iter()
        .filter(|(_, id)| !id.is_null());
    let generation = ids.map(|(key, id)| (key.to_owned(), id));
    write_json(
        &dir.join("generation_config.json"),
        &Value::Object(generation.collect()),
    )?;
    write_tokenizer(dir, files, options)?;
    match (&files.chat_template, training_template(options)) {
        (Some(template), None) => Ok(write_file(&dir.join(CHAT_TEMPLATE), template.as_bytes())?),
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
                fix: "provide a tokenizer.json, or merge into the model's safetensors directory",
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

/// Writes `value` as indented JSON with a final newline.
pub(super) fn write_json(path: &Path, value: &Value) -> Result<(), CheckpointError> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(CheckpointError::json(path))?;
    bytes.push(b'\n');
    Ok(write_file(path, &bytes)?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::nest_sections;

    #[test]
    fn sections_are_in_the_table_that_transformers_reads() {
        let table = |fields: serde_json::Value| {
            let mut config = fields.as_object().unwrap().clone();
            nest_sections(&mut config);
            assert!(!config.contains_key("mrope_section"));
            config.get("rope_scaling").cloned()
        };
        let nested =
            json!({"rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": true});
        assert_eq!(
            table(json!({"rope_scaling": null, "mrope_section": [2, 1, 1]})),
            Some(nested)
        );
        let yarn =
            table(json!({"rope_scaling": {"rope_type": "yarn"}, "mrope_section": [2, 1, 1]}));
        assert_eq!(yarn.unwrap()["rope_type"], "yarn");
        assert_eq!(table(json!({"rope_theta": 1e4})), None);
    }
}
