//! PEFT adapter directories, `adapter_config.json` and `adapter_model.safetensors`; the same
//! adapter as GGUF for llama.cpp ([`write_gguf_adapter`]); and what other programs make of it
//! ([`compatibility`]).
//!
//! In memory a tensor is named by its place in the model, such as
//! `model.layers.0.self_attn.q_proj.lora_A.weight`; the prefix that PEFT puts in front exists on
//! disk only. What a config asks for and we cannot compute is refused by name: an adapter that
//! loads and then computes something else is worse than one that does not load.
//! Source: huggingface/peft, `utils/save_and_load.py` and `tuners/lora/config.py`.

mod consumers;
mod gguf;
mod named_targets;
mod peft_config;
mod scaling;

use std::collections::BTreeMap;
use std::path::Path;

pub use consumers::{
    Compatibility, CompatibilityRow, Consumer, PeftRules, Verdict, VllmLoad, compatibility,
    converter_rules, peft_rules, sglang_rules, vllm_rules,
};
pub use gguf::{GgufAdapter, GgufArchitecture, GgufBase, read_gguf_adapter, write_gguf_adapter};
pub use named_targets::with_named_targets;
use peft_config::SAVED_WEIGHTS;
pub use peft_config::{InitLoraWeights, Patterns, PeftConfig, TargetModules, saved_weight};
pub use scaling::{ModuleScaling, Scalings, neutral};
pub(crate) use scaling::{Pair, scaled_pairs};

use crate::atomic::{write_directory, write_file};
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
/// Has no `.weight` in PEFT's files.
const MAGNITUDE_SUFFIX: &str = ".lora_magnitude_vector";

/// A LoRA adapter in host memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    /// Rank, scale and targets.
    pub config: PeftConfig,
    /// By place in the model: `<module>.lora_A.weight` is `[r, in]`, `<module>.lora_B.weight`
    /// `[out, r]`, with DoRA `<module>.lora_magnitude_vector` `[out]`; the weights of
    /// `modules_to_save` under their own names.
    pub tensors: BTreeMap<String, HostTensor>,
}

/// Writes an adapter as a new PEFT directory with tensors of `dtype`, complete or not at all.
///
/// The files are made in a temporary sibling that is renamed to `dir` at the end; those of
/// `prompts` are among them.
///
/// # Errors
///
/// - `dir` exists
/// - a value is NaN or infinite, or is so in `dtype`, or a factor lacks its other half
/// - a file cannot be written
pub fn save_adapter(
    dir: &Path,
    adapter: &Adapter,
    dtype: FloatDtype,
    prompts: &PromptFiles,
) -> Result<(), CheckpointError> {
    save_adapter_beside(dir, adapter, dtype, prompts, &BTreeMap::new())
}

/// The same with further files by their names, such as those of the tokenizer.
///
/// # Errors
///
/// As [`save_adapter`]; a name that the adapter has, too.
pub fn save_adapter_beside(
    dir: &Path,
    adapter: &Adapter,
    dtype: FloatDtype,
    prompts: &PromptFiles,
    beside: &BTreeMap<String, Vec<u8>>,
) -> Result<(), CheckpointError> {
    write_directory(dir, |staging| {
        write_adapter_files(staging, adapter, dtype, prompts)?;
        let mut files = beside.iter();
        files.try_for_each(|(name, bytes)| write_file(&staging.join(name), bytes))
    })
}

/// Writes the files of a PEFT adapter into an existing directory, such as the staging directory
/// of a checkpoint.
///
/// # Errors
///
/// As [`save_adapter`], except that the directory must exist and its files must not.
pub fn write_adapter_files(
    dir: &Path,
    adapter: &Adapter,
    dtype: FloatDtype,
    prompts: &PromptFiles,
) -> Result<(), CheckpointError> {
    let tensors_path = dir.join(TENSORS_FILE);
    let config_path = dir.join(CONFIG_FILE);
    check_pairs(&tensors_path, &adapter.tensors)?;
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

/// Reads a PEFT adapter directory, with tensors of f32, f16 or bf16.
///
/// # Errors
///
/// - a file is absent, truncated or malformed
/// - the config asks for what is not supported (another `peft_type`, a bias, a module in
///   `modules_to_save` that is neither head nor embedding, …); the error names the field
/// - a tensor is no LoRA factor, lacks its other half, or the two do not share a rank
/// - a value is NaN or infinite
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
                feature: format!("tensor {key}, whose name does not begin with {KEY_PREFIX},"),
                fix: "save the adapter with PEFT's save_pretrained",
            })?;
        let tensor = weights.read_f32(key)?;
        check_finite(&path, key, &tensor)?;
        tensors.insert(name.to_owned(), tensor);
    }
    check_pairs(&path, &tensors)?;
    check_kinds(&path, &config, &tensors)?;
    Ok(Adapter { config, tensors })
}

impl Adapter {
    /// Compares names and shapes with those of the model's adapter, both ways.
    ///
    /// # Errors
    ///
    /// Any tensor is missing, extra or of another shape; one error lists them all. `path` is the
    /// adapter's place, for the message.
    pub fn check(
        &self,
        path: &Path,
        expected: &[(String, Vec<usize>)],
    ) -> Result<(), CheckpointError> {
        let found = self
            .tensors
            .iter()
            .map(|(name, t)| (name.as_str(), t.shape.as_slice()));
        reject_differences(path, tensor_differences(expected, found))
    }
}

/// Refuses a factor that was read and holds NaN or infinity.
fn check_finite(path: &Path, name: &str, tensor: &HostTensor) -> Result<(), CheckpointError> {
    match tensor.values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(element_idx) => {
            let at = format!("tensor {name}, element {element_idx}");
            let problem = format!("it is {}", tensor.values[element_idx]);
            Err(CheckpointError::malformed(path, at, problem))
        }
    }
}

/// Checks that every tensor is a LoRA factor whose other half is there with the same rank.
fn check_pairs(path: &Path, tensors: &BTreeMap<String, HostTensor>) -> Result<(), CheckpointError> {
    let unsupported = |feature: String, fix| CheckpointError::Unsupported {
        path: path.to_owned(),
        feature,
        fix,
    };
    if tensors.is_empty() {
        return Err(unsupported(
            "an adapter without tensors".to_owned(),
            "save it again",
        ));
    }
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
            let fix = "only lora_A.weight, lora_B.weight and lora_magnitude_vector of linear layers \
                        are, and whole weights of the head and the embedding; train without others";
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

/// Checks that the magnitudes of a module are as many as the rows of its B.
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
            hint: format!(
                ", whose outputs {module}{MAGNITUDE_SUFFIX} is of; save the adapter again"
            ),
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

/// Checks that there are magnitudes where the config has DoRA and nowhere else, and of
/// `modules_to_save` each weight and no other.
fn check_kinds(
    path: &Path,
    config: &PeftConfig,
    tensors: &BTreeMap<String, HostTensor>,
) -> Result<(), CheckpointError> {
    let disagree = |tensor: String, problem: &str| {
        Err(CheckpointError::malformed(path, tensor, problem.to_owned()))
    };
    for name in tensors.keys() {
        if let Some(module) = name.strip_suffix(A_SUFFIX) {
            let magnitudes = format!("{module}{MAGNITUDE_SUFFIX}");
            match (config.use_dora, tensors.contains_key(&magnitudes)) {
                (true, false) => {
                    return disagree(magnitudes, "is missing, and use_dora of the config is true");
                }
                (false, true) => {
                    return disagree(magnitudes, "is there, and use_dora of the config is false");
                }
                _ => {}
            }
        }
    }
    let saved: Vec<&str> = config.saved_modules().filter_map(saved_weight).collect();
    for weight in SAVED_WEIGHTS {
        match (saved.contains(&weight), tensors.contains_key(weight)) {
            (true, false) => {
                return disagree(
                    weight.to_owned(),
                    "is missing, and modules_to_save names it",
                );
            }
            (false, true) => {
                return Err(CheckpointError::Unsupported {
                    path: path.to_owned(),
                    feature: format!("{weight} without its module in modules_to_save"),
                    fix: "PEFT saves embedding and head as they are beside an adapter \
                          (save_embedding_layers), also where the vocabulary was resized: save the \
                          adapter again with save_embedding_layers=False, or name in modules_to_save \
                          what was trained",
                });
            }
            _ => {}
        }
    }
    Ok(())
}

impl Adapter {
    /// The whole weights of the head and the embedding that it has, by their names in the model.
    pub fn saved_weights(&self) -> impl Iterator<Item = (&'static str, &HostTensor)> {
        let weights = SAVED_WEIGHTS.into_iter();
        weights.filter_map(|name| Some((name, self.tensors.get(name)?)))
    }

    /// What it is beside plain low-rank factors, in words; `None` of plain LoRA.
    pub(crate) fn beside_factors(&self) -> Option<&'static str> {
        let saves = self.saved_weights().next().is_some();
        match (self.config.use_dora, saves) {
            (true, _) => Some("DoRA (use_dora)"),
            (false, true) => Some("a whole weight (modules_to_save)"),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests;
