//! How many blocks of a micro-batch keep their activations instead of being run again.
//!
//! The count changes time and memory, never a result, so it may follow from what the machine has
//! free when the run begins and from each micro-batch's own size.

use burn::tensor::Device;
use tooltune_kernels::gated_delta::chunked::CHUNK;
use tooltune_kernels::{ComputeDtype, DeltaHeads, is_cpu};

use crate::config::{CheckpointingMode, GradientCheckpointing, LoraConfig};
use crate::device::{LOSS_ROWS_ON_GPU, free_memory_bytes};
use crate::models::DecoderConfig;
use crate::models::families::{BranchNorms, Gate, HeadNorms};
use crate::models::layers::Mixer;
use crate::models::load::projection_features;

/// Share of the CPU's free memory that `auto` may fill with activations; the rest is for what comes and
/// goes, and for other programs.
const SHARE: f64 = 0.5;

/// Most that `auto` keeps on the CPU, as a multiple of the weights in the type that products read.
const WEIGHTS: f64 = 2.0;

/// Share of a GPU's free memory that a run may fill, its weights included; the rest is for the context,
/// the code of the kernels, and what the pool cannot use of its pages.
const GPU_SHARE: f64 = 0.9;

/// Copies of a trained value on a GPU: parameter, two moments, gradient, and one on its way.
const GPU_ADAPTER_COPIES: f64 = 5.0;

/// Copies of a chunk's logits on a GPU, in the type of products: logits that become gradients, and one
/// on its way.
const GPU_LOGITS_COPIES: f64 = 2.0;

/// Bytes of an f32: the residual stream, adapters, logits.
pub(crate) const F32: f64 = 4.0;

/// Values alive at once for each token of a block, as multiples of the widths.
#[derive(Debug, Clone, Copy, Default)]
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
    /// Of what linear attention is given of a token, reads of its states, and gives.
    pub linear: f64,
}

/// What a block's graph keeps: the stream at its begin and middle, queries, keys, values,
/// attention's output, gate and up. Norms and what down reads are computed again.
pub(crate) const KEPT: BlockWidths = BlockWidths {
    stream: 2.0,
    hidden: 0.0,
    queries: 2.0,
    key_values: 2.0,
    intermediate: 2.0,
    linear: 1.0,
};

/// A block that is differentiated on a GPU: what it keeps, and gradients on their way. Most are alive
/// when down is done: the stream's twice, and those of what down read, of gate and of up.
pub(crate) const TRAINING: BlockWidths = BlockWidths {
    stream: 4.0,
    hidden: 3.0,
    queries: 2.0,
    key_values: 2.0,
    intermediate: 6.0,
    linear: 2.0,
};

/// Bytes that a block of linear attention keeps for each token on a GPU, where its steps are operations of
/// their own, counted tensor by tensor. In the type of products: what is convolved. In f32: three times
/// its width before and behind the norms of queries and keys; queries and keys of value heads in chunks,
/// and a state for each chunk; eight numbers for each pair of tokens of a chunk; and values that are
/// corrected, decayed and read.
fn linear_steps(model: &DecoderConfig, dtype: ComputeDtype) -> f64 {
    let Some(linear) = model.linear else {
        return 0.0;
    };
    let DeltaHeads {
        value_heads,
        key_dim,
        value_dim,
        ..
    } = linear.heads;
    let keys = (value_heads * key_dim) as f64;
    let states = value_dim as f64 / CHUNK as f64;
    let width = linear.heads.width() as f64;
    let numbers = 3.0 * width
        + keys * (5.0 + states)
        + 8.0 * (CHUNK * value_heads) as f64
        + 5.0 * linear.heads.values() as f64;
    F32 * numbers + compute_bytes(dtype) * width
}

/// Times what [`linear_steps`] says while a block is differentiated.
const LINEAR_STEPS_TRAINING: f64 = 1.5;

/// What a block keeps beside [`KEPT`], by its family: queries, keys and values before their norms; what
/// norms behind a branch read; what down reads where the gate is an operation of its own; and the stream
/// in the type of products, where no norm comes before them.
pub(crate) fn kept_beside(model: &DecoderConfig) -> BlockWidths {
    let family = model.family;
    let branches = [family.norms.attention, family.norms.feed_forward];
    let count = |has: fn(&BranchNorms) -> bool| branches.iter().filter(|b| has(b)).count() as f64;
    // Without a norm before it a branch keeps what it reads in the type of products alone.
    let middle = match family.norms.feed_forward.before {
        Some(_) => 0.0,
        None => 1.0,
    };
    let normed_heads = if family.head_norms == HeadNorms::None {
        0.0
    } else {
        1.0
    };
    // What has the gates, and the output before them.
    let gates = if family.query_gate { 1.0 } else { 0.0 };
    BlockWidths {
        stream: count(|branch| branch.after.is_some()) - middle,
        hidden: count(|branch| branch.before.is_none()),
        queries: normed_heads + 3.0 * gates,
        key_values: 2.0 * (normed_heads + gates),
        linear: 0.0,
        intermediate: if family.gate == Gate::Silu { 0.0 } else { 1.0 },
    }
}

/// What DoRA makes a block keep beside what it keeps without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Magnitudes {
    /// Nothing: plain LoRA.
    None,
    /// The outputs of its projections before magnitudes multiply them.
    Learned,
    /// The same, and what plain operations on f32 read where dropout is: the inputs of projections,
    /// their masks and what those leave, and the weights.
    Dropped,
}

impl Magnitudes {
    /// Those of a run.
    pub fn of(lora: &LoraConfig) -> Self {
        match (lora.use_dora, lora.lora_dropout > 0.0) {
            (false, _) => Self::None,
            (true, false) => Self::Learned,
            (true, true) => Self::Dropped,
        }
    }

    /// Widths of what is kept of each token.
    pub(crate) fn kept(self, dtype: ComputeDtype) -> BlockWidths {
        let of_f32 = F32 / compute_bytes(dtype);
        let outputs = BlockWidths {
            stream: 2.0,
            hidden: 0.0,
            queries: of_f32,
            key_values: 2.0 * of_f32,
            intermediate: 2.0 * of_f32,
            linear: 0.0,
        };
        match self {
            Self::None => BlockWidths::default(),
            Self::Learned => outputs,
            Self::Dropped => {
                // What projections read, in f32, and of each of them a mask and what that leaves. In f32
                // attention's output is kept in any case.
                let attended = if dtype == ComputeDtype::Bf16 {
                    1.0
                } else {
                    0.0
                };
                outputs.and(BlockWidths {
                    stream: 2.0 + 2.0 * 5.0,
                    queries: (attended + 2.0) * of_f32,
                    intermediate: (1.0 + 2.0) * of_f32,
                    ..BlockWidths::default()
                })
            }
        }
    }

    /// Bytes that each block that is differentiated keeps whatever its tokens.
    pub(crate) fn kept_weights(self, model: &DecoderConfig) -> f64 {
        let of_layer = |layer: usize| {
            let projections = 0..model.projections(layer).paths.len();
            let values = projections.map(|index| {
                let (inputs, outputs) = projection_features(model, layer, index);
                inputs as f64 * outputs as f64
            });
            values.sum::<f64>()
        };
        let layers = 0..model.num_hidden_layers;
        match self {
            Self::None | Self::Learned => 0.0,
            Self::Dropped => F32 * layers.map(of_layer).fold(0.0, f64::max),
        }
    }
}

/// The rule of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeptBlocks {
    setting: GradientCheckpointing,
    n_blocks: usize,
    bytes_per_token: f64,
    /// What a kept block takes whatever its tokens.
    bytes_per_block: f64,
    budget: Budget,
}

/// What `auto` may fill.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Budget {
    bytes: f64,
    /// What each token of a micro-batch takes of it where no block is kept.
    bytes_per_token: f64,
}

/// What a rule follows from, beside the device.
#[derive(Debug, Clone, Copy)]
pub struct RunShape<'a> {
    /// `train.gradient_checkpointing`.
    pub setting: GradientCheckpointing,
    /// The model.
    pub model: &'a DecoderConfig,
    /// Trained values.
    pub n_adapter: usize,
    /// The dtype of matrix products.
    pub compute_dtype: ComputeDtype,
    /// What DoRA makes it keep.
    pub magnitudes: Magnitudes,
}

impl KeptBlocks {
    /// The rule for a run on a device whose weights are not loaded yet, with the memory that is free now.
    ///
    /// On the CPU `auto` keeps what fits in half of it, and at most twice what the weights take: enough
    /// for all 30 blocks of SmolLM2 and 1,136 tokens. On a GPU it keeps what fits in nine tenths of it
    /// beside weights, adapter and a step that keeps nothing.
    pub fn new(shape: RunShape, device: &Device) -> Self {
        let free = free_memory_bytes(device).unwrap_or(0) as f64;
        if is_cpu(device) {
            Self::on_cpu(free, shape)
        } else {
            Self::on_gpu(free, shape)
        }
    }

    /// The rule on a CPU with so much memory free.
    pub(crate) fn on_cpu(free_bytes: f64, shape: RunShape) -> Self {
        let most = WEIGHTS * shape.weight_bytes();
        let budget = Budget {
            bytes: (SHARE * free_bytes).min(most),
            bytes_per_token: 0.0,
        };
        Self::within(budget, shape, 0.0)
    }

    /// The rule on a GPU with so much memory free.
    pub(crate) fn on_gpu(free_bytes: f64, shape: RunShape) -> Self {
        let RunShape {
            model,
            compute_dtype,
            ..
        } = shape;
        let logits = LOSS_ROWS_ON_GPU as f64 * model.vocab_size as f64;
        let resident = shape.weight_bytes()
            + GPU_ADAPTER_COPIES * F32 * shape.n_adapter as f64
            + GPU_LOGITS_COPIES * compute_bytes(compute_dtype) * logits
            + shape.magnitudes.kept_weights(model);
        let inputs = F32 * (model.num_hidden_layers * model.hidden_size) as f64;
        let steps = linear_steps(model, compute_dtype);
        let budget = Budget {
            bytes: (GPU_SHARE * free_bytes - resident).max(0.0),
            bytes_per_token: inputs
                + LINEAR_STEPS_TRAINING * steps
                + TRAINING
                    .and(kept_beside(model))
                    .and(shape.magnitudes.kept(compute_dtype))
                    .bytes_per_token(model, compute_dtype),
        };
        Self::within(budget, shape, steps)
    }

    fn within(budget: Budget, shape: RunShape, steps: f64) -> Self {
        Self {
            setting: shape.setting,
            n_blocks: shape.model.num_hidden_layers,
            bytes_per_token: steps
                + KEPT
                    .and(kept_beside(shape.model))
                    .and(shape.magnitudes.kept(shape.compute_dtype))
                    .bytes_per_token(shape.model, shape.compute_dtype),
            bytes_per_block: shape.magnitudes.kept_weights(shape.model),
            budget,
        }
    }

    /// Blocks that a micro-batch of `n_tokens` tokens keeps.
    pub fn count(&self, n_tokens: usize) -> usize {
        match self.setting {
            GradientCheckpointing::Mode(CheckpointingMode::None) => self.n_blocks,
            GradientCheckpointing::Mode(CheckpointingMode::Full) => 0,
            GradientCheckpointing::KeepBlocks(n) => n.min(self.n_blocks),
            GradientCheckpointing::Mode(CheckpointingMode::Auto) => {
                let n_tokens = n_tokens.max(1) as f64;
                let left = self.budget.bytes - self.budget.bytes_per_token * n_tokens;
                let of_block = self.bytes_per_token * n_tokens + self.bytes_per_block;
                ((left / of_block) as usize).min(self.n_blocks)
            }
        }
    }
}

impl RunShape<'_> {
    /// Bytes of the weights in the type that products read.
    fn weight_bytes(&self) -> f64 {
        compute_bytes(self.compute_dtype) * self.model.n_parameters() as f64
    }
}

impl BlockWidths {
    /// Both together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            stream: self.stream + other.stream,
            hidden: self.hidden + other.hidden,
            queries: self.queries + other.queries,
            key_values: self.key_values + other.key_values,
            intermediate: self.intermediate + other.intermediate,
            linear: self.linear + other.linear,
        }
    }

    /// Bytes for each token of a block of `model`, as many of each kind as it has.
    pub(crate) fn bytes_per_token(&self, model: &DecoderConfig, dtype: ComputeDtype) -> f64 {
        let [attention, linear] = self.bytes_of_mixers(model, dtype);
        let layers = model.layers.iter();
        let n_linear = layers.filter(|kind| kind.mixer == Mixer::Linear).count();
        let share = n_linear as f64 / model.layers.len().max(1) as f64;
        self.bytes_beside_heads([model.hidden_size, model.intermediate_size], dtype)
            + attention * (1.0 - share)
            + linear * share
    }

    /// The same of a block of the kind that takes most.
    pub(crate) fn most_bytes_per_token(&self, model: &DecoderConfig, dtype: ComputeDtype) -> f64 {
        let [attention, linear] = self.bytes_of_mixers(model, dtype);
        self.bytes_beside_heads([model.hidden_size, model.intermediate_size], dtype)
            + attention.max(linear)
    }

    /// Of attention, and of linear attention where there is some.
    fn bytes_of_mixers(&self, model: &DecoderConfig, dtype: ComputeDtype) -> [f64; 2] {
        let heads = self.queries * (model.num_attention_heads * model.head_dim) as f64
            + self.key_values * (model.num_key_value_heads * model.head_dim) as f64;
        let linear = model.linear.map_or(0.0, |linear| {
            let given: usize = linear.heads.columns().iter().sum();
            self.linear * (given + 2 * linear.heads.values()) as f64
        });
        [heads, linear].map(|numbers| compute_bytes(dtype) * numbers)
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
            bytes_per_block: 0.0,
            budget: Budget {
                bytes: 1e9,
                bytes_per_token: 0.0,
            },
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

    fn llama_3_8b() -> DecoderConfig {
        let shape = include_str!("../../../scripts/gpu/shapes/llama-3-8b.json");
        let shape = serde_json::from_str(shape).expect("a shape is JSON");
        DecoderConfig::from_json(&shape).expect("a shape is a config")
    }

    #[test]
    fn auto_on_a_gpu_keeps_what_fits_beside_weights_and_a_step_that_keeps_nothing() {
        let model = llama_3_8b();
        let shape = RunShape {
            setting: GradientCheckpointing::Mode(CheckpointingMode::Auto),
            model: &model,
            n_adapter: 41_943_040,
            compute_dtype: ComputeDtype::Bf16,
            magnitudes: Magnitudes::None,
        };
        let kept = |gib: f64, n_tokens| {
            KeptBlocks::on_gpu(gib * (1u64 << 30) as f64, shape).count(n_tokens)
        };
        // An H100 and an H200 keep all blocks of 8,192 tokens; 24 GB have room for the weights alone.
        assert_eq!([kept(79.1, 8192), kept(139.8, 8192)], [32, 32]);
        assert_eq!([kept(22.0, 8192), kept(0.0, 8192)], [0, 0]);
        let half = kept(40.0, 8192);
        assert!((8..24).contains(&half), "{half}");
        // A shorter micro-batch keeps more, a longer one less.
        assert!(kept(40.0, 4096) > half && half > kept(40.0, 12_288));
    }
}
