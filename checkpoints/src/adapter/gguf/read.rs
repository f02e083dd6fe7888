//! Reads a GGUF adapter by llama.cpp's rules, with PEFT's tensor names.

use std::collections::BTreeMap;
use std::path::Path;

use super::{ADAPTER_TYPE, ALPHA, GgufArchitecture, TYPE, is_linear};
use crate::adapter::scaling::{ModuleScaling, Scalings};
use crate::adapter::{A_SUFFIX, B_SUFFIX, check_finite};
use crate::error::CheckpointError;
use crate::families::Family;
use crate::weights::HostTensor;
use crate::weights::gguf::{ARCHITECTURE, GgufFile, GgufMetadata};

const INVOCATION_TOKENS: &str = "adapter.alora.invocation_tokens";

/// The factors in a GGUF adapter and the scalings that llama.cpp applies.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufAdapter {
    /// Tensors by module path as in [`crate::Adapter`], with rows and columns in Hugging Face's
    /// order.
    pub tensors: BTreeMap<String, HostTensor>,
    /// `adapter.lora.alpha / rank` of every module, or 1 if alpha is 0 or absent.
    pub scalings: Scalings,
}

/// Reads an adapter as llama.cpp loads it onto a base model of `architecture`.
///
/// # Errors
///
/// - The file is not GGUF, truncated or damaged.
/// - It is not a LoRA adapter, or belongs to a different architecture.
/// - A tensor is neither `.lora_a` nor `.lora_b`, lacks its other half, does not fit it, or has a
///   name that these models do not have.
/// - A value is NaN or infinite.
/// - The adapter is activated by certain tokens (aLoRA).
pub fn read_gguf_adapter(
    path: &Path,
    architecture: GgufArchitecture,
) -> Result<GgufAdapter, CheckpointError> {
    let file = GgufFile::open(path)?;
    check_kind(&file.metadata, architecture)?;
    let alpha = file.metadata.f32(ALPHA)?.unwrap_or(0.0);
    if !alpha.is_finite() {
        return Err(CheckpointError::field(path, ALPHA, "must be finite"));
    }
    let mut adapter = GgufAdapter {
        tensors: BTreeMap::new(),
        scalings: Scalings::new(),
    };
    for name in adapted_weights(path, &file)? {
        let module = module_path(path, architecture.family, &name)?;
        let [a, b] = ["lora_a", "lora_b"].map(|end| read_factor(&file, path, &name, end));
        let (mut a, mut b) = (a?, b?);
        let (&[rank, n_in], &[n_out, columns]) = (&a.shape[..], &b.shape[..]) else {
            let problem = "both factors must be matrices";
            return Err(CheckpointError::malformed(path, name, problem));
        };
        if rank != columns || rank == 0 {
            let problem = format!("lora_a {:?} does not fit lora_b {:?}", a.shape, b.shape);
            return Err(CheckpointError::malformed(path, name, problem));
        }
        let order = architecture.order(path, &module, &[n_out, n_in])?;
        a.values = order.columns_only().undo(a.values, &a.shape);
        b.values = order.rows_only().undo(b.values, &b.shape);
        let scaling = if alpha == 0.0 {
            1.0
        } else {
            f64::from(alpha / rank as f32)
        };
        adapter.tensors.insert(format!("{module}{A_SUFFIX}"), a);
        adapter.tensors.insert(format!("{module}{B_SUFFIX}"), b);
        let scaling = ModuleScaling { rank, scaling };
        if adapter.scalings.insert(module, scaling).is_some() {
            let problem = "two tensors belong to this module";
            return Err(CheckpointError::malformed(path, name, problem));
        }
    }
    Ok(adapter)
}

fn check_kind(
    metadata: &GgufMetadata,
    architecture: GgufArchitecture,
) -> Result<(), CheckpointError> {
    for (key, expected) in [TYPE, ADAPTER_TYPE, (ARCHITECTURE, architecture.name())] {
        let value = metadata.require(key, metadata.text(key)?)?;
        if value != expected {
            let problem = format!("is \"{value}\" but must be \"{expected}\" for this base model");
            return Err(CheckpointError::field(metadata.path(), key, problem));
        }
    }
    if metadata.has(INVOCATION_TOKENS) {
        return Err(CheckpointError::Unsupported {
            path: metadata.path().to_owned(),
            feature: INVOCATION_TOKENS.to_owned(),
            fix: "use an adapter that applies to all tokens",
        });
    }
    Ok(())
}

/// The names of the weights that have factors, sorted and without duplicates.
fn adapted_weights(path: &Path, file: &GgufFile) -> Result<Vec<String>, CheckpointError> {
    let mut adapted_weights = Vec::new();
    let mut names = Vec::new();
    for name in file.tensor_names() {
        let halves = [".lora_a", ".lora_b"].map(|end| name.strip_suffix(end));
        match halves.into_iter().flatten().next() {
            Some(base) => adapted_weights.push(base.to_owned()),
            // llama.cpp also ignores norms.
            None if name.ends_with("_norm.weight") => {}
            None => {
                let problem = "is neither .lora_a nor .lora_b";
                return Err(CheckpointError::malformed(path, name, problem));
            }
        }
        names.push(name);
    }
    names.sort_unstable();
    if let Some(duplicate) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let problem = "the name occurs twice";
        return Err(CheckpointError::malformed(path, duplicate[0], problem));
    }
    adapted_weights.sort_unstable();
    adapted_weights.dedup();
    Ok(adapted_weights)
}

fn module_path(path: &Path, family: &Family, base: &str) -> Result<String, CheckpointError> {
    let name = family.hugging_face_tensor(base);
    let gguf = base.strip_suffix(".weight");
    let is_linear = name != base && gguf.is_some_and(is_linear);
    match name.strip_suffix(".weight").filter(|_| is_linear) {
        Some(module) => Ok(module.to_owned()),
        None => {
            let problem = "is not a linear layer of these models";
            Err(CheckpointError::malformed(path, base, problem))
        }
    }
}

fn read_factor(
    file: &GgufFile,
    path: &Path,
    base: &str,
    end: &str,
) -> Result<HostTensor, CheckpointError> {
    let name = format!("{base}.{end}");
    let tensor = file
        .read_f32(&name)?
        .ok_or_else(|| CheckpointError::UnknownTensor {
            path: path.to_owned(),
            tensor: name.clone(),
            hint: ", the other half of a pair; export the adapter again".to_owned(),
        })?;
    check_finite(path, &name, &tensor)?;
    Ok(tensor)
}
