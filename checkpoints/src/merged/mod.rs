//! A base model with an adapter added to its weights, as a directory that any program loads.
//!
//! Every adapted weight becomes `W + scaling · B·A`, computed in f32 and rounded once to the format
//! that the base keeps it in; the others are written as they are. Tensors are read, changed and
//! written one at a time, so that memory holds one of them and the headers, whatever the model's
//! size. What belongs to the model beside its weights is in `companions`.

mod companions;
mod delta;
mod gguf;
mod gguf_config;
mod gguf_layers;
mod gguf_linear;

pub use companions::tokenizer_files;
pub use gguf::{
    GgufMergeOptions, OLLAMA_MODEL, OllamaFolder, refused_by_llama_cpp, save_merged_gguf,
    save_ollama,
};

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use crate::adapter::{Adapter, Pair, Scalings, scaled_pairs};
use crate::atomic::write_directory;
use crate::error::CheckpointError;
use crate::model_files::ModelFiles;
use crate::prompt_files::PromptFiles;
use crate::weights::{
    FloatDtype, HostTensor, INDEX, NewTensor, SINGLE, Weights, write_safetensors,
};

/// What can be chosen of a merged model.
#[derive(Debug, Clone, Copy)]
pub struct MergeOptions<'a> {
    /// Most bytes of tensors in one file; a tensor that is larger has a file for itself.
    pub max_shard_bytes: u64,
    /// What the tensors of a GGUF base are written as, all of them. Tensors of safetensors bases
    /// keep their own formats.
    pub gguf_dtype: FloatDtype,
    /// Content of `tokenizer.json`, for a GGUF base without one beside it.
    pub tokenizer_json: Option<&'a str>,
    /// What training asked with; the chat template takes the place of the base's.
    pub prompts: Option<&'a PromptFiles>,
    /// Further files by their names.
    pub beside: Option<&'a BTreeMap<String, Vec<u8>>>,
}

impl Default for MergeOptions<'_> {
    /// Files of 5 GB, as `transformers` makes them, bf16, and nothing but the base's.
    fn default() -> Self {
        MergeOptions {
            max_shard_bytes: 5_000_000_000,
            gguf_dtype: FloatDtype::BF16,
            tokenizer_json: None,
            beside: None,
            prompts: None,
        }
    }
}

/// Writes the model at `base` (see [`ModelFiles::open`]) with `adapter` added, as the new
/// directory `dir`, complete or not at all.
///
/// Tensors are in `model.safetensors`, or in shards with `model.safetensors.index.json`. An output
/// layer that the base ties to its embedding stays tied. Modules outside `scalings` are left as the
/// base has them.
///
/// # Errors
///
/// - `dir` exists, a file cannot be written, or one of the base cannot be read
/// - modules of the adapter that the base does not have, all listed, or an adapter of an output
///   layer that the base ties
/// - factors or whole weights of other shapes than the base's, or factors without their other half
/// - a sum that is NaN or infinite in the format it is written in; its name and element are told
/// - a GGUF base without `tokenizer.json`, and none in `options`
pub fn save_merged(
    dir: &Path,
    base: &Path,
    adapter: &Adapter,
    scalings: &Scalings,
    options: &MergeOptions<'_>,
) -> Result<(), CheckpointError> {
    let files = ModelFiles::open(base)?;
    let scaled = scaled_pairs(&adapter.tensors, scalings)?;
    let by_weight = by_weight(&files, &scaled)?;
    let replaced = replaced(&files, adapter)?;
    let shards = shards(&files.weights, options)?;
    write_directory(dir, |staging| {
        companions::write(staging, base, &files, options)?;
        write_index(staging, &shards)?;
        for shard in &shards {
            let path = staging.join(&shard.file);
            write_safetensors(&path, shard.tensors.clone(), |name| {
                if let Some(weight) = replaced.get(name) {
                    return Ok(Cow::Borrowed(*weight));
                }
                let mut weight = files.weights.read_f32(name)?;
                if let Some((pair, scaling)) = by_weight.get(name) {
                    delta::add(&mut weight, pair, *scaling);
                }
                Ok(Cow::Owned(weight))
            })?;
        }
        Ok(())
    })
}

/// Adds `scaling · B·A` to `weight`, `[out, in]`, all in f32, as a merged model does.
///
/// # Panics
///
/// If the shapes disagree: a bug of the caller.
pub fn add_product(weight: &mut HostTensor, a: &HostTensor, b: &HostTensor, scaling: f64) {
    let shape = [b.shape[0], a.shape[1]];
    assert_eq!(
        weight.shape, shape,
        "the shape of a weight and of its factors"
    );
    let pair = Pair {
        module: "",
        a,
        b,
        magnitudes: None,
    };
    delta::add(weight, &pair, scaling);
}

/// The pair of each adapted weight by the name of that; every one has been checked.
fn by_weight<'a>(
    files: &ModelFiles,
    scaled: &'a [(Pair<'a>, f64)],
) -> Result<BTreeMap<String, &'a (Pair<'a>, f64)>, CheckpointError> {
    let named = scaled.iter();
    let named = named.map(|scaled| (format!("{}.weight", scaled.0.module), scaled));
    let by_weight = named.collect();
    check_modules(files, &by_weight)?;
    Ok(by_weight)
}

/// The weights that the adapter has whole, by name; every one fits the base.
fn replaced<'a>(
    files: &ModelFiles,
    adapter: &'a Adapter,
) -> Result<BTreeMap<&'static str, &'a HostTensor>, CheckpointError> {
    let tied = files.config["tie_word_embeddings"] == true;
    let (mut found, mut unmatched) = (BTreeMap::new(), Vec::new());
    for (name, weight) in adapter.saved_weights() {
        match files.weights.shape(name) {
            Some(shape) if shape == weight.shape && !tied => {
                found.insert(name, weight);
            }
            _ => unmatched.push(name.trim_end_matches(".weight").to_owned()),
        }
    }
    if unmatched.is_empty() {
        return Ok(found);
    }
    Err(CheckpointError::UnmatchedModules {
        path: files.weights.origin().to_owned(),
        modules: unmatched,
        fix: "these weights of modules_to_save have another shape in this base, or it ties head and \
              embedding; merge into the model that the adapter was trained on",
    })
}

/// Checks that every adapted weight is there, is the base's own, and fits its factors.
fn check_modules(
    files: &ModelFiles,
    by_weight: &BTreeMap<String, &(Pair<'_>, f64)>,
) -> Result<(), CheckpointError> {
    let weights = &files.weights;
    let tied = files.config["tie_word_embeddings"] == true;
    let mut unmatched = Vec::new();
    for (name, (pair, scaling)) in by_weight {
        let is_tied = tied && name == "lm_head.weight";
        let Some(shape) = weights.shape(name).filter(|_| !is_tied) else {
            unmatched.push(pair.module.to_owned());
            continue;
        };
        let [n_out, n_in] = [pair.b.shape[0], pair.a.shape[1]];
        if shape != [n_out, n_in] {
            let problem = format!(
                "the adapter is for a weight of shape {:?} and the base has {shape:?}; \
                 it was trained on another model",
                [n_out, n_in]
            );
            return Err(CheckpointError::field(weights.origin(), name, problem));
        }
        if !scaling.is_finite() {
            let problem = format!("its scaling is {scaling}; correct lora_alpha");
            return Err(CheckpointError::field(weights.origin(), name, problem));
        }
    }
    if unmatched.is_empty() {
        return Ok(());
    }
    Err(CheckpointError::UnmatchedModules {
        path: weights.origin().to_owned(),
        modules: unmatched,
        fix: "merge into the model that the adapter was trained on, and without an adapter of an \
               output layer that is the embedding",
    })
}

/// One file of tensors.
#[derive(Debug)]
struct Shard {
    file: String,
    tensors: Vec<NewTensor>,
}

/// Tensors in order of name to files of at most `max_shard_bytes`.
fn shards(weights: &Weights, options: &MergeOptions<'_>) -> Result<Vec<Shard>, CheckpointError> {
    let mut full = Vec::new();
    let mut open: Vec<NewTensor> = Vec::new();
    let mut n_bytes = 0_u64;
    for name in weights.names() {
        let new = NewTensor {
            name: name.to_owned(),
            shape: weights.shape(name).unwrap_or_default().to_vec(),
            dtype: written_as(weights, name, options)?,
        };
        let size = size(&new);
        if n_bytes.saturating_add(size) > options.max_shard_bytes && !open.is_empty() {
            full.push(std::mem::take(&mut open));
            n_bytes = 0;
        }
        n_bytes = n_bytes.saturating_add(size);
        open.push(new);
    }
    full.push(open);
    let n_shards = full.len();
    let named = |(idx, tensors)| Shard {
        file: match n_shards {
            1 => SINGLE.to_owned(),
            _ => format!("model-{:05}-of-{n_shards:05}.safetensors", idx + 1),
        },
        tensors,
    };
    Ok(full.into_iter().enumerate().map(named).collect())
}

/// The format of a tensor in the merged model.
fn written_as(
    weights: &Weights,
    name: &str,
    options: &MergeOptions<'_>,
) -> Result<FloatDtype, CheckpointError> {
    if weights.is_gguf() {
        return Ok(options.gguf_dtype);
    }
    weights
        .float_dtype(name)
        .ok_or_else(|| CheckpointError::Unsupported {
            path: weights.origin().to_owned(),
            feature: format!(
                "merging with tensor {name} stored as {}",
                weights.stored_as(name).unwrap_or("an unknown format")
            ),
            fix: "merge into the model in f32, f16 or bf16",
        })
}

/// Bytes of a tensor; its shape was compared with the length of its file when that was opened.
fn size(new: &NewTensor) -> u64 {
    new.n_bytes().map_or(u64::MAX, |n| n as u64)
}

/// Which shard holds what, where there are several.
fn write_index(dir: &Path, shards: &[Shard]) -> Result<(), CheckpointError> {
    if shards.len() == 1 {
        return Ok(());
    }
    let all = shards.iter().flat_map(|shard| &shard.tensors);
    let total_size: u64 = all.map(size).sum();
    let mut weight_map = serde_json::Map::new();
    for shard in shards {
        for tensor in &shard.tensors {
            weight_map.insert(tensor.name.clone(), shard.file.clone().into());
        }
    }
    let index = json!({"metadata": {"total_size": total_size}, "weight_map": weight_map});
    companions::write_json(&dir.join(INDEX), &index)
}

#[cfg(test)]
mod tests;
