//! A GGUF adapter by llama.cpp's rules: what it would compute, under PEFT's names.

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

/// The factors in a GGUF adapter, and what llama.cpp multiplies them by.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufAdapter {
    /// By place in the model as in [`crate::Adapter`], rows and columns in Hugging Face's order.
    pub tensors: BTreeMap<String, HostTensor>,
    /// `adapter.lora.alpha / rank` of every module, or 1 where alpha is 0 or absent.
    pub scalings: Scalings,
}

/// Reads an adapter as llama.cpp loads it onto a base model of `architecture`.
///
/// # Errors
///
/// - the file is no GGUF, truncated or damaged
/// - it is no LoRA adapter, or one for another architecture
/// - a tensor is neither `.lora_a` nor `.lora_b`, lacks its other half, does not fit it, or has a
///   name that these models do not have
/// - a value is NaN or infinite
/// - it is switched on by certain tokens only (aLoRA)
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
    for name in bases(path, &file)? {
        let module = module_of(path, architecture.family, &name)?;
        let [a, b] = ["lora_a", "lora_b"].map(|end| half(&file, path, &name, end));
        let (mut a, mut b) = (a?, b?);
        let (&[rank, n_in], &[n_out, columns]) = (&a.shape[..], &b.shape[..]) else {
            let problem = "its factors must be matrices";
            return Err(CheckpointError::malformed(path, name, problem));
        };
        if rank != columns || rank == 0 {
            let problem = format!("lora_a {:?} does not fit lora_b {:?}", a.shape, b.shape);
            return Err(CheckpointError::malformed(path, name, problem));
        }
        let order = architecture.order(path, &module, &[n_out, n_in])?;
        a.values = order.of_columns().undo(a.values, &a.shape);
        b.values = order.of_rows().undo(b.values, &b.shape);
        let scaling = if alpha == 0.0 {
            1.0
        } else {
            f64::from(alpha / rank as f32)
        };
        adapter.tensors.insert(format!("{module}{A_SUFFIX}"), a);
        adapter.tensors.insert(format!("{module}{B_SUFFIX}"), b);
        let scaling = ModuleScaling { rank, scaling };
        if adapter.scalings.insert(module, scaling).is_some() {
            let problem = "two tensors have this place in the model";
            return Err(CheckpointError::malformed(path, name, problem));
        }
    }
    Ok(adapter)
}

fn check_kind(
    metadata: &GgufMetadata,
    architecture: GgufArchitecture,
) -> Result<(), CheckpointError> {
    for (key, wanted) in [TYPE, ADAPTER_TYPE, (ARCHITECTURE, architecture.name())] {
        let found = metadata.require(key, metadata.text(key)?)?;
        if found != wanted {
            let problem = format!("is \"{found}\" and must be \"{wanted}\" for this base model");
            return Err(CheckpointError::field(metadata.path(), key, problem));
        }
    }
    if metadata.has(INVOCATION_TOKENS) {
        return Err(CheckpointError::Unsupported {
            path: metadata.path().to_owned(),
            feature: INVOCATION_TOKENS.to_owned(),
            fix: "only adapters that always count are read",
        });
    }
    Ok(())
}

/// Names of the weights that have factors, each once, in order of name.
fn bases(path: &Path, file: &GgufFile) -> Result<Vec<String>, CheckpointError> {
    let mut bases = Vec::new();
    let mut seen = Vec::new();
    for name in file.tensor_names() {
        let halves = [".lora_a", ".lora_b"].map(|end| name.strip_suffix(end));
        match halves.into_iter().flatten().next() {
            Some(base) => bases.push(base.to_owned()),
            // llama.cpp passes over norms, too: they are not applied.
            None if name.ends_with("_norm.weight") => {}
            None => {
                let problem = "neither .lora_a nor .lora_b";
                return Err(CheckpointError::malformed(path, name, problem));
            }
        }
        seen.push(name);
    }
    seen.sort_unstable();
    if let Some(twice) = seen.windows(2).find(|pair| pair[0] == pair[1]) {
        let problem = "the name occurs twice";
        return Err(CheckpointError::malformed(path, twice[0], problem));
    }
    bases.sort_unstable();
    bases.dedup();
    Ok(bases)
}

fn module_of(path: &Path, family: &Family, base: &str) -> Result<String, CheckpointError> {
    let name = family.hugging_face_tensor(base);
    let gguf = base.strip_suffix(".weight");
    let is_linear = name != base && gguf.is_some_and(is_linear);
    match name.strip_suffix(".weight").filter(|_| is_linear) {
        Some(module) => Ok(module.to_owned()),
        None => {
            let problem = "no linear layer of these models has that name";
            Err(CheckpointError::malformed(path, base, problem))
        }
    }
}

fn half(
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
