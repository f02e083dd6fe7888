//! Writes the trained parameters of a sentence encoder as a directory that sentence-transformers
//! can load.
//!
//! The files have the format of version 2, because all later versions accept its class names.
//! Source: UKPLab/sentence-transformers, `SentenceTransformer._load_sbert_model` and `save`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tooltune_disk::atomic::{write_directory, write_file};
use tooltune_disk::budgets::TOKENIZER_BYTES;

use super::read::SentenceTransformer;
use crate::budgets::JSON_BYTES;
use crate::error::CheckpointError;
use crate::model_files::tokenizer_without_dropout;
use crate::regular_file;
use crate::weights::{HostTensor, Weights, write_tensors};

/// Files of the base that are copied unchanged if present.
const TOKENIZER: [&str; 4] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
];

/// Weights of `BertModel` that sentence embeddings do not use. They are written because
/// sentence-transformers would otherwise warn about randomly initialised weights.
const POOLER: [&str; 2] = ["pooler.dense.weight", "pooler.dense.bias"];

/// Writes an encoder with the shape and tokenizer of `base` and the parameters `tensors`, named as
/// in `BertModel`. Inputs are truncated at `max_seq_length` tokens. All other settings are copied
/// from `base`, in a format that all versions and vLLM accept.
///
/// # Errors
///
/// - `dir` exists, or a file of `base` cannot be read.
/// - A value is NaN or infinite.
/// - A file cannot be written.
pub fn save_sentence_transformer(
    dir: &Path,
    base: &SentenceTransformer,
    mut tensors: BTreeMap<String, HostTensor>,
    max_seq_length: usize,
) -> Result<(), CheckpointError> {
    let (rules, base) = (base, &base.dir);
    let weights = Weights::open(base)?;
    for name in POOLER {
        if weights.shape(name).is_some() {
            tensors.insert(name.to_owned(), weights.read_f32(name)?);
        }
    }
    let config_path = base.join("config.json");
    let bytes = regular_file::read(&config_path, JSON_BYTES)?;
    let config: Value =
        serde_json::from_slice(&bytes).map_err(CheckpointError::json(&config_path))?;
    write_directory(dir, |staging| {
        write_tensors(&staging.join("model.safetensors"), &tensors)?;
        write_file(&staging.join("config.json"), &bytes)?;
        for name in TOKENIZER {
            let path = base.join(name);
            if !regular_file::is_there(&path)? {
                continue;
            }
            let bytes = if name == "tokenizer.json" {
                tokenizer_without_dropout(&path)?
            } else {
                regular_file::read(&path, TOKENIZER_BYTES)?
            };
            write_file(&staging.join(name), &bytes)?;
        }
        write_modules(staging, &config["hidden_size"], rules, max_seq_length)
    })
}

/// Writes the files that define pooling and normalisation.
fn write_modules(
    dir: &Path,
    hidden_size: &Value,
    rules: &SentenceTransformer,
    max_seq_length: usize,
) -> Result<(), CheckpointError> {
    let module = |(idx, (path, name)): (usize, (&str, &str))| {
        let class = format!("sentence_transformers.models.{name}");
        json!({"idx": idx, "name": idx.to_string(), "path": path, "type": class})
    };
    let mut modules = vec![("", "Transformer"), ("1_Pooling", "Pooling")];
    if rules.normalize {
        modules.push(("2_Normalize", "Normalize"));
    }
    let folders: Vec<&str> = modules[1..].iter().map(|(path, _)| *path).collect();
    let modules: Vec<Value> = modules.into_iter().enumerate().map(module).collect();
    let mut pooling = json!({"word_embedding_dimension": hidden_size});
    for (flag, is_set) in rules.pooling.flags() {
        pooling[flag] = is_set.into();
    }
    pooling["include_prompt"] = rules.include_prompt.into();
    let transformer_settings = json!({
        "max_seq_length": max_seq_length,
        "do_lower_case": rules.do_lower_case,
    });
    let model_settings = json!({
        "__version__": {"sentence_transformers": "2.0.0"},
        "prompts": rules.prompts.by_name,
        "default_prompt_name": rules.prompts.default_prompt_name,
        "similarity_fn_name": rules.similarity.name(),
    });
    for folder in &folders {
        let path = dir.join(folder);
        fs::create_dir(&path).map_err(CheckpointError::io("create", &path))?;
    }
    for (name, value) in [
        ("modules.json", Value::Array(modules)),
        ("sentence_bert_config.json", transformer_settings),
        ("config_sentence_transformers.json", model_settings),
        ("1_Pooling/config.json", pooling),
    ] {
        let path = dir.join(name);
        let mut bytes = serde_json::to_vec_pretty(&value).map_err(CheckpointError::json(&path))?;
        bytes.push(b'\n');
        write_file(&path, &bytes)?;
    }
    if rules.normalize {
        // Write a file, because Git and object stores drop empty directories.
        Ok(write_file(&dir.join("2_Normalize/.gitkeep"), b"")?)
    } else {
        Ok(())
    }
}
