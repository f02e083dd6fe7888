//! GGUF tensor names as Hugging Face names and back, and which rows llama.cpp has reordered.
//!
//! A name outside the table stays as it is, so that the comparison with the model lists it.

use std::path::Path;

use super::RowOrder;
use super::gguf::GgufMetadata;
use crate::error::CheckpointError;

/// Tensors outside the blocks, without their last part (`weight` or `bias`).
const OUTER: [(&str, &str); 3] = [
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
];

/// Tensors of block `N`: after `blk.N.`, after `model.layers.N.`.
const IN_BLOCK: [(&str, &str); 9] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// The Hugging Face name of a GGUF tensor, or the name itself if it has none.
pub(crate) fn hugging_face_name(name: &str) -> String {
    renamed(name).unwrap_or_else(|| name.to_owned())
}

fn renamed(name: &str) -> Option<String> {
    let (module, kind) = name.rsplit_once('.')?;
    let lookup = |table: &[(&str, &'static str)], key: &str| {
        table
            .iter()
            .find(|(gguf, _)| *gguf == key)
            .map(|(_, hugging_face)| *hugging_face)
    };
    let Some(in_block) = module.strip_prefix("blk.") else {
        return Some(format!("{}.{kind}", lookup(&OUTER, module)?));
    };
    let (layer_idx, module) = in_block.split_once('.')?;
    let layer_idx: usize = layer_idx.parse().ok()?;
    Some(format!(
        "model.layers.{layer_idx}.{}.{kind}",
        lookup(&IN_BLOCK, module)?
    ))
}

/// The GGUF name of a Hugging Face module, such as `blk.0.attn_q`; `None` if it has none.
pub(crate) fn gguf_module(module: &str) -> Option<String> {
    let lookup = |table: &[(&'static str, &str)], module: &str| {
        table
            .iter()
            .find(|(_, hugging_face)| *hugging_face == module)
            .map(|(gguf, _)| *gguf)
    };
    let Some(in_block) = module.strip_prefix("model.layers.") else {
        return lookup(&OUTER, module).map(str::to_owned);
    };
    let (layer_idx, module) = in_block.split_once('.')?;
    let layer_idx: usize = layer_idx.parse().ok()?;
    Some(format!("blk.{layer_idx}.{}", lookup(&IN_BLOCK, module)?))
}

/// Numbers of attention heads, by which llama.cpp reorders rows of query and key projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadCounts {
    /// Heads of queries.
    pub n_query: usize,
    /// Heads of keys and values, fewer where queries share them.
    pub n_key_value: usize,
}

impl HeadCounts {
    /// From the metadata of a model; `None` for architectures whose rows stay in order.
    pub(super) fn from_metadata(
        metadata: &GgufMetadata,
    ) -> Result<Option<HeadCounts>, CheckpointError> {
        if metadata.text("general.architecture")? != Some("llama") {
            return Ok(None);
        }
        let key = "llama.attention.head_count";
        let n_query = metadata.require(key, metadata.unsigned(key)?)?;
        let n_key_value = metadata
            .unsigned("llama.attention.head_count_kv")?
            .unwrap_or(n_query);
        // A count beyond usize divides no row count, which `order` refuses.
        let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Ok(Some(HeadCounts {
            n_query: count(n_query),
            n_key_value: count(n_key_value),
        }))
    }

    /// How llama.cpp's llama architecture orders the rows of the tensor with this Hugging Face
    /// name; `path` is the file concerned, for the message.
    pub(crate) fn order(
        self,
        path: &Path,
        name: &str,
        shape: &[usize],
    ) -> Result<RowOrder, CheckpointError> {
        let n_heads = if name.contains(".self_attn.q_proj.") {
            self.n_query
        } else if name.contains(".self_attn.k_proj.") {
            self.n_key_value
        } else {
            return Ok(RowOrder::AsIs);
        };
        let n_rows = shape.first().copied().unwrap_or(0);
        let whole_heads = n_heads
            .checked_mul(2)
            .is_some_and(|n| n > 0 && n_rows.is_multiple_of(n));
        if !whole_heads || n_rows == 0 {
            let at = format!("tensor {name}");
            let problem =
                format!("its {n_rows} rows do not divide into {n_heads} heads of two halves");
            return Err(CheckpointError::malformed(path, at, problem));
        }
        Ok(RowOrder::HalvesInterleaved { n_heads })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        let modules = IN_BLOCK
            .iter()
            .map(|(_, module)| format!("model.layers.17.{module}"));
        for module in modules.chain(OUTER.iter().map(|(_, module)| (*module).to_owned())) {
            let gguf = gguf_module(&module).unwrap();
            assert_eq!(
                hugging_face_name(&format!("{gguf}.weight")),
                format!("{module}.weight")
            );
        }
        assert_eq!(
            gguf_module("model.layers.3.mlp.down_proj").as_deref(),
            Some("blk.3.ffn_down")
        );
        for unknown in [
            "model.layers.x.mlp.up_proj",
            "model.layers.3.mlp",
            "score",
            "",
        ] {
            assert_eq!(gguf_module(unknown), None);
        }
    }
}
