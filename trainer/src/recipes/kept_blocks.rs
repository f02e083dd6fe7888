//! How many blocks of a micro-batch keep their activations instead of being run again.
//!
//! The count changes time and memory, never a result, so it may follow from what the machine has
//! free when the run begins and from each micro-batch's own size.

use burn::tensor::Device;
use tooltune_kernels::{ComputeDtype, is_cpu};

use crate::config::{CheckpointingMode, GradientCheckpointing};
use crate::models::ModelConfig;
use crate::models::load::expected_tensors;
use crate::process::available_memory_bytes;

/// Share of the free memory that `auto` may fill with activations; the rest is for what comes and
/// goes, and for other programs.
const SHARE: f64 = 0.5;

/// Most that `auto` keeps, as a multiple of the weights in the type that products read.
const WEIGHTS: f64 = 2.0;

/// Bytes of an f32: the residual stream, adapters, logits.
pub(crate) const F32: f64 = 4.0;

/// Values alive at once for each token of a block, as multiples of the widths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockWidths {
    /// Of the hidden size, in the residual stream: f32.
    pub stream: f64,
    /// Of the hidden size, as all that follow in the type that products read.
    pub hidden: f64,
    /// Of all query heads together.
    pub queries: f64,
    /// Of all key/value heads together.
    pub key_values: f64,
    /// Of the feed-forward width.
    pub intermediate: f64,
}

/// What a block's graph keeps: the stream at its begin and middle, queries, keys, values,
/// attention's output, gate and up. Norms and what down reads are computed again.
pub(crate) const KEPT: BlockWidths = BlockWidths {
    stream: 2.0,
    hidden: 0.0,
    queries: 2.0,
    key_values: 2.0,
    intermediate: 2.0,
};

/// The rule of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeptBlocks {
    setting: GradientCheckpointing,
    n_blocks: usize,
    bytes_per_token: f64,
    budget_bytes: f64,
}

impl KeptBlocks {
    /// The rule for a model on a device, with the memory that is free now.
    ///
    /// `auto` keeps what fits in half of it, and at most twice what the weights take: enough for all
    /// 30 blocks of SmolLM2 and 1,136 tokens. On a GPU, whose free memory is not asked for, it keeps
    /// nothing.
    pub fn new(
        setting: GradientCheckpointing,
        model: &ModelConfig,
        compute_dtype: ComputeDtype,
        device: &Device,
    ) -> Self {
        let budget_bytes = match is_cpu(device) {
            true => available_memory_bytes().map_or(0.0, |bytes| bytes as f64 * SHARE),
            false => 0.0,
        };
        Self::within(budget_bytes, setting, model, compute_dtype)
    }

    /// The rule where `auto` may fill `budget_bytes`.
    pub(crate) fn within(
        budget_bytes: f64,
        setting: GradientCheckpointing,
        model: &ModelConfig,
        compute_dtype: ComputeDtype,
    ) -> Self {
        let weights = expected_tensors(model);
        let n_weights: usize = weights
            .iter()
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum();
        let weight_bytes = compute_bytes(compute_dtype) * n_weights as f64;
        Self {
            setting,
            n_blocks: model.num_hidden_layers,
            bytes_per_token: KEPT.bytes_per_token(model, compute_dtype),
            budget_bytes: budget_bytes.min(WEIGHTS * weight_bytes),
        }
    }

    /// Blocks that a micro-batch of `n_tokens` tokens keeps.
    pub fn count(&self, n_tokens: usize) -> usize {
        match self.setting {
            GradientCheckpointing::Mode(CheckpointingMode::None) => self.n_blocks,
            GradientCheckpointing::Mode(CheckpointingMode::Full) => 0,
            GradientCheckpointing::KeepBlocks(n) => n.min(self.n_blocks),
            GradientCheckpointing::Mode(CheckpointingMode::Auto) => {
                let block = self.bytes_per_token * n_tokens.max(1) as f64;
                ((self.budget_bytes / block) as usize).min(self.n_blocks)
            }
        }
    }
}

impl BlockWidths {
    /// Bytes for each token of a block of `model`.
    pub(crate) fn bytes_per_token(&self, model: &ModelConfig, dtype: ComputeDtype) -> f64 {
        let heads = self.queries * (model.num_attention_heads * model.head_dim) as f64
            + self.key_values * (model.num_key_value_heads * model.head_dim) as f64;
        self.bytes_beside_heads([model.hidden_size, model.intermediate_size], dtype)
            + compute_bytes(dtype) * heads
    }

    /// The same without queries, keys and values, for the hidden and the feed-forward width.
    pub(crate) fn bytes_beside_heads(
        &self,
        [hidden, intermediate]: [usize; 2],
        dtype: ComputeDtype,
    ) -> f64 {
        let between = self.hidden * hidden as f64 + self.intermediate * intermediate as f64;
        F32 * self.stream * hidden as f64 + compute_bytes(dtype) * between
    }
}

/// Bytes of a number between two operations of a block.
pub(crate) fn compute_bytes(dtype: ComputeDtype) -> f64 {
    dtype.dtype().size() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(setting: GradientCheckpointing) -> KeptBlocks {
        KeptBlocks {
            setting,
            n_blocks: 30,
            bytes_per_token: 20e3,
            budget_bytes: 1e9,
        }
    }

    #[test]
    fn auto_keeps_what_fits_and_the_other_settings_what_they_say() {
        let auto = rule(GradientCheckpointing::Mode(CheckpointingMode::Auto));
        assert_eq!(auto.count(0), 30);
        assert_eq!(auto.count(1_000), 30);
        assert_eq!(auto.count(10_000), 5);
        assert_eq!(auto.count(100_000), 0);
        for n_tokens in [1, 1_000_000] {
            let count = |setting| rule(setting).count(n_tokens);
            let mode = GradientCheckpointing::Mode;
            assert_eq!(count(mode(CheckpointingMode::None)), 30);
            assert_eq!(count(mode(CheckpointingMode::Full)), 0);
            assert_eq!(count(GradientCheckpointing::KeepBlocks(7)), 7);
            assert_eq!(count(GradientCheckpointing::KeepBlocks(70)), 30);
        }
    }
}
