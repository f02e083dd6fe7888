//! A LoRA adapter as the one GGUF file that llama.cpp loads beside its base model (`--lora`).
//!
//! Metadata: `general.type` "adapter", `general.architecture` that of the base, `adapter.type`
//! "lora", `adapter.lora.alpha`. Tensors: `blk.N.attn_q.weight.lora_a` `[rank, in]` and `….lora_b`
//! `[out, rank]`, as in PEFT's files, except that B of query and key projections has its rows in
//! the order that llama.cpp's llama architecture keeps them in.
//! Source: ggml-org/llama.cpp, `src/llama-adapter.cpp` and `convert_lora_to_gguf.py`.

mod read;
mod write;

use std::path::Path;

use serde_json::Value;

pub use read::{GgufAdapter, read_gguf_adapter};
pub use write::write_gguf_adapter;

use crate::error::CheckpointError;
use crate::families::{Family, HeadRows};
use crate::weights::{HeadCounts, RowOrder};

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
    /// Where rows of query and key projections are reordered by heads.
    heads: Option<HeadCounts>,
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

    /// How the rows of the weight of `module` are ordered, and with them those of its B factor.
    pub(crate) fn row_order(
        self,
        path: &Path,
        module: &str,
        shape: &[usize],
    ) -> Result<RowOrder, CheckpointError> {
        match self.heads {
            Some(heads) => heads.order(path, &format!("{module}.weight"), shape),
            None => Ok(RowOrder::AsIs),
        }
    }
}

impl GgufBase {
    /// From the fields of a `config.json`, such as [`crate::ModelFiles::config`]; `path` is the
    /// model's place, for the message.
    ///
    /// # Errors
    ///
    /// A model type of no [`Family`], or of one that is not written in GGUF, or no numbers of heads.
    pub fn from_config(path: &Path, config: &Value) -> Result<GgufBase, CheckpointError> {
        let Some(family) = Family::of_config(config) else {
            let other = config["model_type"].as_str().unwrap_or_default();
            return Err(CheckpointError::Unsupported {
                path: path.to_owned(),
                feature: format!("an adapter in GGUF for model_type \"{other}\""),
                fix: "export it as PEFT and convert it with llama.cpp",
            });
        };
        family.gguf.check(path, "an adapter or a model in GGUF")?;
        let heads = match family.gguf.head_rows {
            HeadRows::AsIs => None,
            HeadRows::HalvesInterleaved => Some(heads(path, config)?),
        };
        Ok(GgufBase {
            architecture: GgufArchitecture { family, heads },
            tied_head: config["tie_word_embeddings"].as_bool().unwrap_or(false),
        })
    }
}

fn heads(path: &Path, config: &Value) -> Result<HeadCounts, CheckpointError> {
    let count = |key: &str| match &config[key] {
        Value::Null => Ok(None),
        value => match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(n) if n > 0 => Ok(Some(n)),
            _ => Err(CheckpointError::field(path, key, "must be at least 1")),
        },
    };
    let key = "num_attention_heads";
    let n_query = count(key)?.ok_or_else(|| CheckpointError::field(path, key, "is absent"))?;
    Ok(HeadCounts {
        n_query,
        n_key_value: count("num_key_value_heads")?.unwrap_or(n_query),
    })
}

#[cfg(test)]
mod tests;
