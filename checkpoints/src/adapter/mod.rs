//! PEFT adapter directories (`adapter_config.json` and `adapter_model.safetensors`), the same
//! adapter as GGUF for llama.cpp ([`write_gguf_adapter`]), and its compatibility with other
//! programs ([`compatibility`]).
//!
//! In memory a tensor is named by its path in the model, such as
//! `model.layers.0.self_attn.q_proj.lora_A.weight`. PEFT's prefix exists only on disk. An
//! unsupported config field is an error that names the field: an adapter that does not load is
//! better than one that loads but computes something else. Source: huggingface/peft,
//! `utils/save_and_load.py` and `tuners/lora/config.py`.

mod consumers;
mod gguf;
mod named_targets;
mod peft_config;
mod scaling;

use std::collections::BTreeMap;
use std::path::Path;

pub use consumers::{
    Compatibility, CompatibilityRow, Consumer, PeftRules, ServedBase, Verdict, VllmLoad,
    compatibility, peft_rules, vllm_rules,
};
pub use gguf::{GgufAdapter, GgufArchitecture, GgufBase, read_gguf_adapter, write_gguf_adapter};
pub use named_targets::with_named_targets;
use peft_config::SAVED_WEIGHTS;
pub use peft_config::{InitLoraWeights, Patterns, PeftConfig, TargetModules, saved_weight};
pub use scaling::{ModuleScaling, Scalings, neutral};
pub(crate) use scaling::{Pair, scaled_pairs};
use tooltune_disk::atomic::{write_directory, write_file};

use crate::error::CheckpointError;
use crate::prompt_files::PromptFiles;
use crate::weights::{
    FloatDtype, HostTensor, Weights, reject_differences, tensor_differences, write_tensors_as,
};

const CONFIG_FILE: &str = "adapter_config.json";
const TENSORS_FILE: &str = "adapter_model.safetensors";
const KEY_PREFIX: &str = "base_model.model.";
const A_SUFFIX: &str = ".lora_A.weight";
const B_SUFFIX: &str = ".lora_B.weight";
/// PEFT writes this tensor name without `.weight`.
const MAGNITUDE_SUFFIX: &str = ".lora_magnitude_vector";

/// A LoRA adapter in host memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    /// Rank, scaling and targets.
    pub config: PeftConfig,
    /// Tensors by module path: `<module>.lora_A.weight` is `[r, in]`, `<module>.lora_B.weight`
    /// `[out, r]`, with DoRA `<module>.lora_magnitude_vector` `[out]`. Weights of `modules_to_save`
    /// keep their own names.
    pub tensors: BTreeMap<String, HostTensor>,
}

/// Writes an adapter with tensors in `dtype` as a new PEFT directory. On failure, no directory
/// remains.
///
/// The files, including those of `prompts`, are written into a temporary sibling directory, which
/// is then renamed to `dir`.
///
/// # Errors
///
/// - `dir` exists.
/// - A value is NaN or infinite, also after rounding to `dtype`, or a factor lacks its other half.
/// - A file cannot be written.
pub fn save_adapter(
    dir: &Path,
    adapter: &Adapter,
    dtype: FloatDtype,
    prompts: &PromptFiles,
) -> Result<(), CheckpointError> {
    save_adapter_with_files(dir, adapter, dtype, prompts, &BTreeMap::new())
}

/// Like [`save_adapter`], with additional files by name, such as the tokenizer.
///
/// # Errors
///
/// As for [`save_adapter`], or an additional file has the name of an adapter file.
pub fn save_adapter_with_files(
    dir: &Path,
    adapter: &Adapter,
    dtype: FloatDtype,
    prompts: &PromptFiles,
    extra_files: &BTreeMap<String, Vec<u8>>,
) -> Result<(), CheckpointError> {
    write_directory(dir, |staging| {
        write_adapter_files(staging, adapter, dtype, prompts)?;
        let mut files = extra_files.iter();
        Ok(files.try_for_each(|(name, bytes)| write_file(&staging.join(name), bytes))?)
    })
}

/// Writes the files of a PEFT adapter into an existing directory, such as the staging directory of
/// a checkpoint.
///
/// # Errors
///
/// As for [`save_adapter`], except that the directory must exist and its files must not.
pub fn write_adapter_files(
    dir: &Path,
    adapter: &Adapter,
    dtype: FloatDtype,
    prompts: &PromptFiles,
) -> Result<(), CheckpointError> {
    let tensors_path = dir.join(TENSORS_FILE);
    let config_path = dir.join(CONFIG_FILE);
    check_file(&tensors_path, &adapter.tensors)?;
    check_kinds(&tensors_path, &adapter.config, &adapter.tensors)?;
    let on_disk: BTreeMap<String, &HostTensor> = adapter
        .tensors
        .iter()
        .map(|(name, t)| (format!("{KEY_PREFIX}{name}"), t))
        .collect();
    write_tensors_as(&tensors_path, dtype, &on_disk)?;
    let mut config =
        serde_json::to_vec_pretty(&adapter.config).map_err(CheckpointError::json(&config_path))?;
    config.push(b'\n');
    write_file(&config_path, &config)?;
    prompts.write(dir)
}

/// Reads a PEFT adapter directory with tensors of f32, f16 or bf16.
///
/// # Errors
///
/// - A file is absent, truncated or malformed.
/// - The config uses an unsupported feature (a different `peft_type`, a bias, a module in
///   `modules_to_save` other than the head and the embedding, …). The error names the field.
/// - A tensor is not a LoRA factor, lacks its other half, or the two have different ranks.
/// - A value is NaN or infinite.
pub fn load_adapter(dir: &Path) -> Result<Adapter, CheckpointError> {
    let config = PeftConfig::load(&dir.join(CONFIG_FILE))?;
    let path = dir.join(TENSORS_FILE);
    let weights = Weights::open(&path)?;
    let mut tensors = BTreeMap::new();
    for key in weights.names() {
        let name = key
            .strip_prefix(KEY_PREFIX)
            .ok_or_else(|| CheckpointError::Unsupported {
                path: path.clone(),
                feature: format!("tensor {key} without the prefix {KEY_PREFIX}"),
                fix: "save the adapter with PEFT's save_pretrained",
            })?;
        let tensor = weights.read_f32(key)?;
        check_finite(&path, key, &tensor)?;
        tensors.insert(name.to_owned(), tensor);
    }
    check_file(&path, &tensors)?;
    check_kinds(&path, &config, &tensors)?;
    Ok(Adapter { config, tensors })
}

impl Adapter {
    /// Compares names and shapes with the model's adapter, in both directions.
    ///
    /// # Errors
    ///
    /// A tensor is missing, extra or has a different shape. One error lists all of them. `path` is
    /// the adapter path named in errors.
    pub fn check(
        &self,
        path: &Path,
        expected: &[(String, Vec<usize>)],
    ) -> Result<(), CheckpointError> {
        let actual = self
            .tensors
            .iter()
            .map(|(name, t)| (name.as_str(), t.shape.as_slice()));
        reject_differences(path, tensor_differences(expected, actual))
    }
}

/// Refuses a factor that contains NaN or infinity.
fn check_finite(path: &Path, name: &str, tensor: &HostTensor) -> Result<(), CheckpointError> {
    match tensor.values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(element_idx) => {
            let location = format!("tensor {name}, element {element_idx}");
            let problem = format!("it is {}", tensor.values[element_idx]);
            Err(CheckpointError::malformed(path, location, problem))
        }
    }
}

/// Checks that an adapter file has tensors and that they pass [`check_pairs`].
fn check_file(path: &Path, tensors: &BTreeMap<String, HostTensor>) -> Result<(), CheckpointError> {
    if tensors.is_empty() {
        return Err(CheckpointError::Unsupported {
            path: path.to_owned(),
            feature: "an adapter without tensors".to_owned(),
            fix: "save the adapter again",
        });
    }
    check_pairs(path, tensors)
}

/// Checks that every tensor is a LoRA factor and that its other half exists with the same rank.
fn check_pairs(path: &Path, tensors: &BTreeMap<String, HostTensor>) -> Result<(), CheckpointError> {
    let unsupported = |feature: String, fix| CheckpointError::Unsupported {
        path: path.to_owned(),
        feature,
        fix,
    };
    for (name, tensor) in tensors {
        if SAVED_WEIGHTS.contains(&name.as_str()) && tensor.shape.len() == 2 {
            continue;
        }
        if let Some(module) = name.strip_suffix(MAGNITUDE_SUFFIX) {
            check_magnitudes(path, module, tensor, tensors)?;
            continue;
        }
        let (other, rank_dim, other_dim) = if let Some(module) = name.strip_suffix(A_SUFFIX) {
            (format!("{module}{B_SUFFIX}"), 0, 1)
        } else if let Some(module) = name.strip_suffix(B_SUFFIX) {
            (format!("{module}{A_SUFFIX}"), 1, 0)
        } else {
            let fix = "use only lora_A.weight, lora_B.weight and lora_magnitude_vector of linear layers, \
                       and whole weights of the head and the embedding";
            return Err(unsupported(format!("tensor {name}"), fix));
        };
        let Some(half) = tensors.get(&other) else {
            return Err(CheckpointError::UnknownTensor {
                path: path.to_owned(),
                tensor: other,
                hint: format!(", the other half of {name}; save the adapter again"),
            });
        };
        let matrices = tensor.shape.len() == 2 && half.shape.len() == 2;
        if !matrices || tensor.shape[rank_dim] != half.shape[other_dim] {
            let problem = format!(
                "shape {:?} does not fit {other} {:?}",
                tensor.shape, half.shape
            );
            return Err(CheckpointError::malformed(path, name.as_str(), problem));
        }
    }
    Ok(())
}

/// Checks that a module has one magnitude per row of B.
fn check_magnitudes(
    path: &Path,
    module: &str,
    magnitudes: &HostTensor,
    tensors: &BTreeMap<String, HostTensor>,
) -> Result<(), CheckpointError> {
    let b_name = format!("{module}{B_SUFFIX}");
    let Some(b) = tensors.get(&b_name) else {
        return Err(CheckpointError::UnknownTensor {
            path: path.to_owned(),
            tensor: b_name,
            hint: format!(", which {module}{MAGNITUDE_SUFFIX} belongs to; save the adapter again"),
        });
    };
    if b.shape.first() != magnitudes.shape.first() || magnitudes.shape.len() != 1 {
        let problem = format!(
            "shape {:?} does not fit {b_name} {:?}",
            magnitudes.shape, b.shape
        );
        let name = format!("{module}{MAGNITUDE_SUFFIX}");
        return Err(CheckpointError::malformed(path, name, problem));
    }
    Ok(())
}

/// Checks that there are magnitudes if and only if the config enables DoRA, and that the fully
/// trained weights are exactly those of `modules_to_save`.
fn check_kinds(
    path: &Path,
    config: &PeftConfig,
    tensors: &BTreeMap<String, HostTensor>,
) -> Result<(), CheckpointError> {
    let mismatch = |tensor: String, problem: &str| {
        Err(CheckpointError::malformed(path, tensor, problem.to_owned()))
    };
    for name in tensors.keys() {
        if let Some(module) = name.strip_suffix(A_SUFFIX) {
            let magnitudes = format!("{module}{MAGNITUDE_SUFFIX}");
            match (config.use_dora, tensors.contains_key(&magnitudes)) {
                (true, false) => {
                    return mismatch(
                        magnitudes,
                        "is missing, but the config sets use_dora to true",
                    );
                }
                (false, true) => {
                    return mismatch(magnitudes, "exists, but the config sets use_dora to false");
                }
                _ => {}
            }
        }
    }
    let saved: Vec<&str> = config.saved_modules().filter_map(saved_weight).collect();
    for weight in SAVED_WEIGHTS {
        match (saved.contains(&weight), tensors.contains_key(weight)) {
            (true, false) => {
                return mismatch(
                    weight.to_owned(),
                    "is missing, but the config lists it in modules_to_save",
                );
            }
            (false, true) => {
                return Err(CheckpointError::Unsupported {
                    path: path.to_owned(),
                    feature: format!("{weight} without its module in modules_to_save"),
                    fix: "PEFT saves the embedding and the head with an adapter (save_embedding_layers), \
                          also after resizing the vocabulary: save the adapter again with \
                          save_embedding_layers=False, or list the trained modules in \
                          modules_to_save",
                });
            }
            _ => {}
        }
    }
    Ok(())
}

impl Adapter {
    /// The adapter's fully trained weights (head and embedding), with their names in the model.
    pub fn saved_weights(&self) -> impl Iterator<Item = (&'static str, &HostTensor)> {
        let weights = SAVED_WEIGHTS.into_iter();
        weights.filter_map(|name| Some((name, self.tensors.get(name)?)))
    }

    /// Describes the adapter's parts other than low-rank factors; `None` for plain LoRA.
    pub(crate) fn non_lora_parts(&self) -> Option<&'static str> {
        let saves = self.saved_weights().next().is_some();
        peft_config::non_lora_parts(self.config.use_dora, saves)
    }
}

#[cfg(test)]
mod tests;
