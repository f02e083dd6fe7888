//! Writes a base model with an adapter merged into its weights, as a directory that any program can
//! load.
//!
//! Every adapted weight becomes `W + scaling · B·A`, computed in f32 and rounded once to the base's
//! data type. Other weights are written unchanged. NF4 weights are written dequantised, in the data
//! type that they had before quantisation, or in NF4 (`nf4`). Tensors are read, changed and written
//! one at a time, so memory holds one tensor and the headers regardless of the model size. The module
//! `companions` writes the other files.

mod companions;
mod delta;
mod end_tokens;
mod gguf;
mod gguf_config;
mod gguf_fields;
mod gguf_layers;
mod gguf_linear;
mod nf4;

pub use companions::tokenizer_files;
pub use end_tokens::EndTokens;
pub use gguf::{
    GgufMergeOptions, OLLAMA_MODEL, OllamaFolder, config_refused_by_llama_cpp,
    refused_by_llama_cpp, save_merged_gguf, save_ollama,
};
pub use gguf_config::short_context;
pub use nf4::Nf4Weights;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;
use tooltune_disk::atomic::write_directory;

use crate::adapter::{Adapter, Pair, Scalings, scaled_pairs};
use crate::error::CheckpointError;
use crate::model_files::ModelFiles;
use crate::prompt_files::PromptFiles;
use crate::weights::{
    Content, FileTensor, FloatDtype, HostTensor, INDEX, NewTensor, Nf4Tensor, SINGLE, Weights,
    write_file_tensors,
};

/// Options of a merged model.
#[derive(Debug, Clone, Copy)]
pub struct MergeOptions<'a> {
    /// Maximum bytes of tensors per file; a larger tensor gets its own file.
    pub max_shard_bytes: u64,
    /// The data type of all tensors of a GGUF base. Tensors of safetensors bases keep their data
    /// types.
    pub gguf_dtype: FloatDtype,
    /// Content of `tokenizer.json`, for a GGUF base without this file in its folder.
    pub tokenizer_json: Option<&'a str>,
    /// The prompt files used in training; their chat template replaces the base's template.
    pub prompts: Option<&'a PromptFiles>,
    /// Additional files by name.
    pub extra_files: Option<&'a BTreeMap<String, Vec<u8>>>,
    /// Weights of a plain base whose NF4 values are merged instead of their original values.
    pub dequantised: Option<Nf4Weights<'a>>,
    /// Weights that are written in NF4. Of a base in NF4, those that it quantises are written in NF4
    /// instead; codes that the adapter does not change remain.
    pub quantised: Option<Nf4Weights<'a>>,
}

impl Default for MergeOptions<'_> {
    /// The defaults: files of 5 GB as in transformers, bf16, and no additional files.
    fn default() -> Self {
        MergeOptions {
            max_shard_bytes: 5_000_000_000,
            gguf_dtype: FloatDtype::BF16,
            tokenizer_json: None,
            extra_files: None,
            prompts: None,
            dequantised: None,
            quantised: None,
        }
    }
}

/// The reason why a base with these files cannot be written as a merged folder: a tensor that is
/// not a float, or a number in a GGUF file whose type transformers refuses. `None` if it can.
pub fn refused_as_folder(files: &ModelFiles) -> Option<CheckpointError> {
    let options = MergeOptions::default();
    let formats = shards(&files.weights, &options).err();
    let config = || match files.weights.is_gguf() {
        true => companions::config_of_gguf(files, &options).err(),
        false => None,
    };
    formats.or_else(config)
}

/// Merges `adapter` into the model at `base` (see [`ModelFiles::open`]), and writes the result as
/// the new directory `dir`. On failure, no directory remains.
///
/// Tensors are in `model.safetensors`, or in shards with `model.safetensors.index.json`. An output
/// layer that the base ties to its embedding remains tied. Modules that are not in `scalings` are
/// unchanged.
///
/// # Errors
///
/// - `dir` exists, a file cannot be written, or a file of the base cannot be read.
/// - The base lacks modules of the adapter (all are listed), or the adapter adapts a tied output
///   layer.
/// - The shapes of factors or fully trained weights do not match the base, or a factor lacks its
///   other half.
/// - A sum is NaN or infinite in the output data type. The error names the tensor and the element.
/// - A GGUF base has no `tokenizer.json`, and `options` contains none.
pub fn save_merged(
    dir: &Path,
    base: &Path,
    adapter: &Adapter,
    scalings: &Scalings,
    options: &MergeOptions<'_>,
) -> Result<(), CheckpointError> {
    let files = ModelFiles::open(base)?;
    let scaled = scaled_pairs(&adapter.tensors, scalings)?;
    let merge = Merge {
        files: &files,
        pairs_by_weight: pairs_by_weight(&files, &scaled)?,
        replacements: replacement_weights(&files, adapter)?,
        options,
    };
    let shards = shards(&files.weights, options)?;
    write_directory(dir, |staging| {
        companions::write(staging, base, &files, options)?;
        let mut index = Vec::with_capacity(shards.len());
        for shard in &shards {
            let path = staging.join(&shard.file);
            index.push((
                shard.file.as_str(),
                merge.write_shard(&path, &shard.tensors)?,
            ));
        }
        write_index(staging, &index)
    })
}

/// A base and the change of its weights.
struct Merge<'a> {
    files: &'a ModelFiles,
    pairs_by_weight: BTreeMap<String, &'a (Pair<'a>, f64)>,
    replacements: BTreeMap<&'static str, &'a HostTensor>,
    options: &'a MergeOptions<'a>,
}

impl Merge<'_> {
    /// Writes these weights to one file, and returns the tensors of the file.
    fn write_shard(
        &self,
        path: &Path,
        tensors: &[NewTensor],
    ) -> Result<Vec<FileTensor>, CheckpointError> {
        let mut quantised = nf4::Parts::new(|name| self.quantised(name));
        let mut planned = Vec::with_capacity(tensors.len());
        for new in tensors {
            match self.writes_nf4(&new.name) {
                true => planned.extend(quantised.plan(&new.name)?),
                false => planned.push(FileTensor::Floats(new.clone())),
            }
        }
        write_file_tensors(path, planned.clone(), |name| {
            match quantised.take(name)? {
                Some(bytes) => Ok(Content::Bytes(Cow::Owned(bytes))),
                None => self.values(name).map(Content::Floats),
            }
        })?;
        Ok(planned)
    }

    /// Whether a weight is written in NF4.
    fn writes_nf4(&self, name: &str) -> bool {
        let quantised = self.options.quantised;
        quantised.is_some_and(|quantised| quantised.contains(&self.files.weights, name))
    }

    /// A merged weight.
    fn values(&self, name: &str) -> Result<Cow<'_, HostTensor>, CheckpointError> {
        if let Some(weight) = self.replacements.get(name) {
            return Ok(Cow::Borrowed(*weight));
        }
        let mut weight = nf4::base_values(&self.files.weights, name, self.options.dequantised)?;
        if let Some((pair, scaling)) = self.pairs_by_weight.get(name) {
            delta::add(&mut weight, pair, *scaling);
        }
        Ok(Cow::Owned(weight))
    }

    /// A merged weight in NF4. An unchanged weight has the codes of the base, because quantising its
    /// dequantised values again would round its absmax values again.
    fn quantised(&self, name: &str) -> Result<Nf4Tensor, CheckpointError> {
        let weights = &self.files.weights;
        let set = self.options.quantised.map(|quantised| quantised.dtype);
        let dtype = match weights.stored_as(name) {
            Some("NF4") => weights.float_dtype(name).or(set),
            _ => set,
        };
        let dtype = dtype.unwrap_or(FloatDtype::BF16);
        if !self.pairs_by_weight.contains_key(name) {
            return weights.quantise_nf4(name, dtype);
        }
        let origin = weights.origin();
        Nf4Tensor::quantise_rounded(self.values(name)?.into_owned(), dtype, origin, name)
    }
}

/// Adds `scaling · B·A` to `weight` `[out, in]` in f32, as in a merged model.
///
/// # Panics
///
/// Panics if the shapes disagree, which is a bug in the caller.
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

/// The factor pairs, keyed by the name of the adapted weight, after checking them against the base.
fn pairs_by_weight<'a>(
    files: &ModelFiles,
    scaled: &'a [(Pair<'a>, f64)],
) -> Result<BTreeMap<String, &'a (Pair<'a>, f64)>, CheckpointError> {
    let entries = scaled.iter();
    let entries = entries.map(|scaled| (format!("{}.weight", scaled.0.module), scaled));
    let pairs_by_weight = entries.collect();
    check_modules(files, &pairs_by_weight)?;
    Ok(pairs_by_weight)
}

/// The fully trained weights of the adapter by name, after checking them against the base.
fn replacement_weights<'a>(
    files: &ModelFiles,
    adapter: &'a Adapter,
) -> Result<BTreeMap<&'static str, &'a HostTensor>, CheckpointError> {
    let tied = files.config["tie_word_embeddings"] == true;
    let (mut replacements, mut unmatched) = (BTreeMap::new(), Vec::new());
    for (name, weight) in adapter.saved_weights() {
        match files.weights.shape(name) {
            Some(shape) if shape == weight.shape && !tied => {
                replacements.insert(name, weight);
            }
            _ => unmatched.push(name.trim_end_matches(".weight").to_owned()),
        }
    }
    if unmatched.is_empty() {
        return Ok(replacements);
    }
    Err(CheckpointError::UnmatchedModules {
        path: files.weights.origin().to_owned(),
        modules: unmatched,
        fix: "the base ties head and embedding, or these weights (modules_to_save) have other \
              shapes in the base; merge into the model that the adapter was trained on",
    })
}

/// Checks that every adapted weight exists, is not tied, and fits its factors.
fn check_modules(
    files: &ModelFiles,
    pairs_by_weight: &BTreeMap<String, &(Pair<'_>, f64)>,
) -> Result<(), CheckpointError> {
    let weights = &files.weights;
    let tied = files.config["tie_word_embeddings"] == true;
    let mut unmatched = Vec::new();
    for (name, (pair, scaling)) in pairs_by_weight {
        let is_tied = tied && name == "lm_head.weight";
        let Some(shape) = weights.shape(name).filter(|_| !is_tied) else {
            unmatched.push(pair.module.to_owned());
            continue;
        };
        let [n_out, n_in] = [pair.b.shape[0], pair.a.shape[1]];
        if shape != [n_out, n_in] {
            let problem = format!(
                "the adapter is for a weight of shape {:?}, but the base has {shape:?}; \
                 use the model that the adapter was trained on",
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
        fix: "merge into the model that the adapter was trained on, and leave out adapters of a \
              tied output layer",
    })
}

/// An output file with its tensors.
#[derive(Debug)]
struct Shard {
    file: String,
    tensors: Vec<NewTensor>,
}

/// Distributes the tensors, in name order, over files of at most `max_shard_bytes`.
fn shards(weights: &Weights, options: &MergeOptions<'_>) -> Result<Vec<Shard>, CheckpointError> {
    let mut full = Vec::new();
    let mut open: Vec<NewTensor> = Vec::new();
    let mut n_bytes = 0_u64;
    for name in weights.names() {
        let new = NewTensor {
            name: name.to_owned(),
            shape: weights.shape(name).unwrap_or_default().to_vec(),
            dtype: output_dtype(weights, name, options)?,
        };
        let size = match options.quantised {
            Some(quantised) if quantised.contains(weights, name) => nf4::byte_size(&new),
            _ => file_size(new.n_bytes()),
        };
        if n_bytes.saturating_add(size) > options.max_shard_bytes && !open.is_empty() {
            full.push(std::mem::take(&mut open));
            n_bytes = 0;
        }
        n_bytes = n_bytes.saturating_add(size);
        open.push(new);
    }
    full.push(open);
    let n_shards = full.len();
    let to_shard = |(idx, tensors)| Shard {
        file: match n_shards {
            1 => SINGLE.to_owned(),
            _ => format!("model-{:05}-of-{n_shards:05}.safetensors", idx + 1),
        },
        tensors,
    };
    Ok(full.into_iter().enumerate().map(to_shard).collect())
}

/// The data type of a tensor in the merged model.
fn output_dtype(
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
                "merging a base whose tensor {name} is stored as {}",
                weights.stored_as(name).unwrap_or("an unknown format")
            ),
            fix: "merge into the model in f32, f16 or bf16",
        })
}

/// Bytes of a tensor. Its shape was checked against the file length when the file was opened.
fn file_size(n_bytes: Option<usize>) -> u64 {
    n_bytes.map_or(u64::MAX, |n| n as u64)
}

/// Writes the index if there are several shards, from their file names and tensors.
fn write_index(dir: &Path, shards: &[(&str, Vec<FileTensor>)]) -> Result<(), CheckpointError> {
    if shards.len() == 1 {
        return Ok(());
    }
    let all = shards.iter().flat_map(|(_, tensors)| tensors);
    let total_size: u64 = all.map(|tensor| file_size(tensor.n_bytes())).sum();
    let mut weight_map = serde_json::Map::new();
    for (file, tensors) in shards {
        for tensor in tensors {
            weight_map.insert(tensor.name().to_owned(), (*file).into());
        }
    }
    let index = json!({"metadata": {"total_size": total_size}, "weight_map": weight_map});
    companions::write_json(&dir.join(INDEX), &index)
}

#[cfg(test)]
mod tests;
