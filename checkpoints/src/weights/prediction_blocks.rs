//! The multi-token-prediction blocks of a GGUF file, which follow the model's own blocks.

use super::gguf::GgufMetadata;
use crate::error::CheckpointError;
use crate::families::{Family, LayerRules};

/// The key with the number of these blocks.
///
/// # Source
///
/// ggml-org/llama.cpp, `llama-arch.cpp` and `models/qwen35.cpp`, `load_arch_tensors`.
pub(crate) const PREDICTION_BLOCKS: &str = "nextn_predict_layers";

/// Separates the model's own blocks from the prediction blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PredictionBlocks {
    /// Index of the first prediction block, if any.
    first: Option<u64>,
}

impl PredictionBlocks {
    /// Reads the metadata of a model. In families without prediction blocks, the check for unknown
    /// keys refuses this key.
    ///
    /// # Errors
    ///
    /// No block is the model's own.
    pub(crate) fn from_metadata(
        metadata: &GgufMetadata,
        family: &Family,
    ) -> Result<PredictionBlocks, CheckpointError> {
        if !matches!(family.config.layers, LayerRules::LinearExceptEvery(_)) {
            return Ok(PredictionBlocks::default());
        }
        let key = |name: &str| format!("{}.{name}", family.gguf.architecture);
        let n_prediction = metadata.unsigned(&key(PREDICTION_BLOCKS))?.unwrap_or(0);
        if n_prediction == 0 {
            return Ok(PredictionBlocks::default());
        }
        let count = key("block_count");
        let n_blocks = metadata.require(&count, metadata.unsigned(&count)?)?;
        match n_blocks.checked_sub(n_prediction) {
            None | Some(0) => {
                let problem =
                    format!("is {n_prediction}, but there are only {n_blocks} blocks ({count})");
                Err(CheckpointError::field(
                    metadata.path(),
                    key(PREDICTION_BLOCKS),
                    problem,
                ))
            }
            first => Ok(PredictionBlocks { first }),
        }
    }

    /// The number of the model's own blocks among `n_blocks`.
    pub(crate) fn n_own_blocks(self, n_blocks: u64) -> u64 {
        self.first.unwrap_or(n_blocks)
    }

    /// Whether the tensor with this GGUF name belongs to a prediction block.
    pub(super) fn contains(self, tensor: &str) -> bool {
        let Some(first) = self.first else {
            return false;
        };
        let in_block = tensor.strip_prefix("blk.");
        let block = in_block.and_then(|in_block| in_block.split('.').next()?.parse().ok());
        block.is_some_and(|block: u64| block >= first)
    }
}
