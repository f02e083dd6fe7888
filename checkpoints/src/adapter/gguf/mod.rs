//! A LoRA adapter as a GGUF file, which llama.cpp loads together with its base model (`--lora`).
//!
//! Metadata: `general.type` "adapter", `general.architecture` of the base model, `adapter.type`
//! "lora", `adapter.lora.alpha`. Tensors: `blk.N.attn_q.weight.lora_a` `[rank, in]` and `….lora_b`
//! `[out, rank]` as in PEFT's files, except that rows of B and columns of A are in llama.cpp's
//! order for that projection. Source: ggml-org/llama.cpp, `src/llama-adapter.cpp` and
//! `convert_lora_to_gguf.py`.

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

/// Properties of the base model that an adapter file depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GgufBase {
    /// llama.cpp's architecture and its layout.
    pub architecture: GgufArchitecture,
    /// Whether the output layer shares its weight with the embedding. If so, the file cannot
    /// contain an adapter for the output layer.
    pub tied_head: bool,
}

/// A llama.cpp architecture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GgufArchitecture {
    family: &'static Family,
    /// How heads are reordered.
    heads: HeadLayout,
}

impl GgufArchitecture {
    /// The value of `general.architecture`.
    pub fn name(self) -> &'static str {
        self.family.gguf.architecture
    }

    /// The family that uses this architecture.
    pub(crate) fn family(self) -> &'static Family {
        self.family
    }

    /// Row and column order of the weight `[out, in]` of `module`. B has the same row order, A the
    /// same column order. `path` is the file named in errors.
    pub(crate) fn order(
        self,
        path: &Path,
        module: &str,
        shape: &[usize],
    ) -> Result<HeadOrder, CheckpointError> {
        self.order_of_tensor(path, &format!("{module}.weight"), shape)
    }

    /// The order of the tensor with this Hugging Face name and these dimensions.
    pub(crate) fn order_of_tensor(
        self,
        path: &Path,
        name: &str,
        shape: &[usize],
    ) -> Result<HeadOrder, CheckpointError> {
        self.heads.order(path, name, shape)
    }
}

/// Whether this GGUF name belongs to a linear layer, which an adapter file can contain.
fn is_linear(gguf: &str) -> bool {
    gguf == "output"
        || gguf.starts_with("blk.") && !gguf.ends_with("_norm") && !gguf.ends_with(CONVOLUTION)
}

impl GgufBase {
    /// Reads the fields of a `config.json`, such as [`crate::ModelFiles::config`]. `path` is the
    /// model path named in errors.
    ///
    /// # Errors
    ///
    /// No [`Family`] has this model type, or head counts are missing or inconsistent.
    pub fn from_config(path: &Path, config: &Value) -> Result<GgufBase, CheckpointError> {
        let Some(family) = Family::of_config(config) else {
            let model_type = config["model_type"].as_str().unwrap_or_default();
            return Err(CheckpointError::Unsupported {
                path: path.to_owned(),
                feature: format!("a GGUF adapter for model_type \"{model_type}\""),
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
