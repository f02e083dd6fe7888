//! Says which rows llama.cpp has reordered, by the numbers of a model's heads.

use std::path::Path;

use super::RowOrder;
use super::gguf::GgufMetadata;
use crate::error::CheckpointError;
use crate::families::{Family, HeadRows};

/// Numbers of attention heads, by which llama.cpp reorders rows of query and key projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadCounts {
    /// Heads of queries.
    pub n_query: usize,
    /// Heads of keys and values, fewer where queries share them.
    pub n_key_value: usize,
}

impl HeadCounts {
    /// From the metadata of a model; `None` for families whose rows stay in order.
    pub(super) fn from_metadata(
        metadata: &GgufMetadata,
        family: &Family,
    ) -> Result<Option<HeadCounts>, CheckpointError> {
        if family.gguf.head_rows == HeadRows::AsIs {
            return Ok(None);
        }
        let key = format!("{}.attention.head_count", family.gguf.architecture);
        let n_query = metadata.require(&key, metadata.unsigned(&key)?)?;
        let n_key_value = metadata.unsigned(&format!("{key}_kv"))?.unwrap_or(n_query);
        // A count beyond usize divides no row count, which `order` refuses.
        let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Ok(Some(HeadCounts {
            n_query: count(n_query),
            n_key_value: count(n_key_value),
        }))
    }

    /// How llama.cpp orders the rows of the tensor with this Hugging Face name, where it interleaves
    /// halves of heads; `path` is the file concerned, for the message.
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
