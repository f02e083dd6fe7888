//! The blocks of a GGUF file behind the model's own, which guess tokens behind the next one.

use super::gguf::GgufMetadata;
use crate::error::CheckpointError;
use crate::families::{Family, LayerRules};

/// How many of the blocks they are.
///
/// # Source
///
/// ggml-org/llama.cpp, `llama-arch.cpp` and `models/qwen35.cpp`, `load_arch_tensors`.
pub(crate) const BLOCKS_AHEAD: &str = "nextn_predict_layers";

/// Which blocks of a file are the model's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BlocksAhead {
    /// The number of the first block behind them, where there is one.
    first: Option<u64>,
}

impl BlocksAhead {
    /// From the metadata of a model; of families that have no such blocks the key is refused elsewhere.
    ///
    /// # Errors
    ///
    /// No block is the model's own.
    pub(crate) fn from_metadata(
        metadata: &GgufMetadata,
        family: &Family,
    ) -> Result<BlocksAhead, CheckpointError> {
        if !matches!(family.config.layers, LayerRules::LinearButEach(_)) {
            return Ok(BlocksAhead::default());
        }
        let key = |name: &str| format!("{}.{name}", family.gguf.architecture);
        let n_ahead = metadata.unsigned(&key(BLOCKS_AHEAD))?.unwrap_or(0);
        if n_ahead == 0 {
            return Ok(BlocksAhead::default());
        }
        let count = key("block_count");
        let n_blocks = metadata.require(&count, metadata.unsigned(&count)?)?;
        match n_blocks.checked_sub(n_ahead) {
            None | Some(0) => {
                let problem = format!("is {n_ahead}, of {n_blocks} blocks in all ({count})");
                Err(CheckpointError::field(
                    metadata.path(),
                    key(BLOCKS_AHEAD),
                    problem,
                ))
            }
            first => Ok(BlocksAhead { first }),
        }
    }

    /// The model's own blocks, of `n_blocks` in all.
    pub(crate) fn own(self, n_blocks: u64) -> u64 {
        self.first.unwrap_or(n_blocks)
    }

    /// Whether the tensor with this GGUF name is of such a block.
    pub(super) fn has(self, tensor: &str) -> bool {
        let Some(first) = self.first else {
            return false;
        };
        let in_block = tensor.strip_prefix("blk.");
        let block = in_block.and_then(|in_block| in_block.split('.').next()?.parse().ok());
        block.is_some_and(|block: u64| block >= first)
    }
}
