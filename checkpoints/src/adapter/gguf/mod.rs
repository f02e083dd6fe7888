//! A LoRA adapter as the one GGUF file that llama.cpp loads beside its base model (`--lora`).
//!
//! Metadata: `general.type` "adapter", `general.architecture` that of the base, `adapter.type`
//! "lora", `adapter.lora.alpha`. Tensors: `blk.N.attn_q.weight.lora_a` `[rank, in]` and `….lora_b`
//! `[out, rank]`, as in PEFT's files, except that rows of B and columns of A are in the order in which
//! llama.cpp keeps those of the projection.
//! Source: ggml-org/llama.cpp, `src/llama-adapter.cpp` and `convert_lora_to_gguf.py`.

mod read;
mod write;

use std::path::Path;

use serde_json::Value;

pub use read::{GgufAdapter, read_gguf_adapter};
pub use write::write_gguf_adapter;

use crate::error::CheckpointError;
use crate::families::{CONVOLUTION, Family};
use crate::weights::{HeadLayout, HeadOrder};

const TYPE: (&str, &str) = ("general.type", "adapter");
const ADAPTER_TYPE: (&str, &str) = ("adapter.type", "lora");
const ALPHA: &str = "adapter.lora.alpha";

/// What an adapter file has to know of the base model it belongs to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GgufBase {
    /// llama.cpp's name for the kind of model, with what belongs to it.
    pub architecture: GgufArchitecture,
    /// Whether the output layer is the embedding; the file then has no place for an adapter of it.
    pub tied_head: bool,
}

/// A kind of model in llama.cpp.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GgufArchitecture {
    family: &'static Family,
    /// What is reordered by heads.
    heads: HeadLayout,
}

impl GgufArchitecture {
    /// The value of `general.architecture`.
    pub fn name(self) -> &'static str {
        self.family.gguf.architecture
    }

    /// The family whose files are of this kind.
    pub(crate) fn family(self) -> &'static Family {
        self.family
    }

    /// How the weight of `module`, `[out, in]`, is ordered: B has the order of its rows, A that of its
    /// columns. `path` is the file concerned, for the message.
    pub(crate) fn order(
        self,
        path: &Path,
        module: &str,
        shape: &[usize],
    ) -> Result<HeadOrder, CheckpointError> {
        self.order_of_tensor(path, &format!("{module}.weight"), shape)
    }

    /// How the tensor with this Hugging Face name and these dimensions is ordered.
    pub(crate) fn order_of_tensor(
        self,
        path: &Path,
        name: &str,
        shape: &[usize],
    ) -> Result<HeadOrder, CheckpointError> {
        self.heads.order(path, name, shape)
    }
}

/// Whether the module of this GGUF name is a linear layer, which a file can adapt.
fn is_linear(gguf: &str) -> bool {
    gguf == "output"
        || gguf.starts_with("blk.") && !gguf.ends_with("_norm") && !gguf.ends_with(CONVOLUTION)
}

impl GgufBase {
    /// From the fields of a `config.json`, such as [`crate::ModelFiles::config`]; `path` is the
    /// model's place, for the message.
    ///
    /// # Errors
    ///
    /// A model type of no [`Family`], or numbers of heads that are absent or do not fit each other.
    pub fn from_config(path: &Path, config: &Value) -> Result<GgufBase, CheckpointError> {
        let Some(family) = Family::of_config(config) else {
            let other = config["model_type"].as_str().unwrap_or_default();
            return Err(CheckpointError::Unsupported {
                path: path.to_owned(),
                feature: format!("an adapter in GGUF for model_type \"{other}\""),
                fix: "export it as PEFT and convert it with llama.cpp",
            });
        };
        let heads = HeadLayout::from_config(path, config, family)?;
        Ok(GgufBase {
            architecture: GgufArchitecture { family, heads },
            tied_head: config["tie_word_embeddings"].as_bool().unwrap_or(false),
        })
    }
}

#[cfg(test)]
mod tests;
