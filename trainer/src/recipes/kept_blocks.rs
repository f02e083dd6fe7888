//! Decides how many blocks of a micro-batch keep their activations. The other blocks recompute
//! them.
//!
//! The number affects time and memory but never the results. It may therefore depend on the free
//! memory at the start of the run and on the size of each micro-batch.

use burn::tensor::Device;
use tooltune_kernels::gated_delta::chunked::CHUNK;
use tooltune_kernels::{ComputeDtype, DeltaHeads, is_cpu};

use crate::config::{CheckpointingMode, GradientCheckpointing, LoraConfig};
use crate::device::{LOSS_ROWS_ON_GPU, free_memory_bytes};
use crate::models::DecoderConfig;
use crate::models::families::{BranchNorms, Gate, HeadNorms};
use crate::models::layers::Mixer;
use crate::models::load::{FrozenWeights, Quantization, projection_features};

/// Share of the free CPU memory that `auto` may fill with activations. The rest is for temporary
/// buffers and other programs.
const CPU_SHARE: f64 = 0.5;

/// Upper limit of `auto` on the CPU, as a multiple of the weight bytes in the compute dtype.
const MAX_WEIGHT_MULTIPLE: f64 = 2.0;

/// Share of the free GPU memory that a run may fill, weights included. The rest is for the context,
/// kernel code and fragmentation of the memory pool.
const GPU_SHARE: f64 = 0.9;

/// Copies of each trained value on a GPU: parameter, two moments, gradient and one temporary.
const GPU_ADAPTER_COPIES: f64 = 5.0;

/// Copies of a chunk's logits on a GPU in the compute dtype: the logits, which become gradients in
/// place, and one temporary.
const GPU_LOGITS_COPIES: f64 = 2.0;

/// Blocks whose weights are on a GPU at once, if they are in host memory.
const BLOCKS_ON_GPU: usize = 2;

/// Offloaded block inputs that are on a GPU at once: in use, on their way to the host and back.
pub(crate) const INPUTS_ON_GPU: usize = 3;

/// Bytes per value in NF4: a code, and the share of an index per 64 values and a scale per 16,384.
const NF4_BYTES: f64 = 0.5 + 1.0 / 64.0 + 4.0 / 16_384.0;

/// Bytes of an f32, the dtype of the residual stream, adapters and logits.
pub(crate) const F32: f64 = 4.0;

/// Values per token that are alive at once in a block, as multiples of the model's widths.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BlockWidths {
    /// Multiple of the hidden size in the residual stream (f32).
    pub stream: f64,
    /// Multiple of the hidden size in the compute dtype, as for all fields below.
    pub hidden: f64,
    /// Multiple of the width of all query heads.
    pub queries: f64,
    /// Multiple of the width of all key/value heads.
    pub key_values: f64,
    /// Multiple of the feed-forward width.
    pub intermediate: f64,
    /// Multiple of the linear-attention width: its inputs, the values read from the state, and its
    /// outputs.
    pub linear: f64,
}

/// Activations that a block's autodiff graph keeps: the residual stream at the start and in the
/// middle of the block, queries, keys, values, the attention output, and the outputs of the gate
/// and up projections. Norms and the input of the down projection are recomputed.
pub(crate) const KEPT: BlockWidths = BlockWidths {
    stream: 2.0,
    hidden: 0.0,
    queries: 2.0,
    key_values: 2.0,
    intermediate: 2.0,
    linear: 1.0,
};

/// Peak of a block during its backward pass on a GPU: the kept activations plus gradients. The peak
/// follows the backward pass of the down projection. The gradients of its input, of gate and of up
/// are alive then, and two gradients of the residual stream.
pub(crate) const TRAINING: BlockWidths = BlockWidths {
    stream: 4.0,
    hidden: 3.0,
    queries: 2.0,
    key_values: 2.0,
    intermediate: 6.0,
    linear: 2.0,
};

/// Bytes per token that a linear-attention block keeps on a GPU if its steps run as separate
/// operations. The factors were counted tensor by tensor.
///
/// The convolution input is kept in the compute dtype. The following values are kept in f32:
///
/// - three tensors of the convolution's width, before and after the norms of queries and keys
/// - queries and keys of each value head in chunks, and one state per chunk
/// - eight numbers per token pair within a chunk
/// - the corrected, decayed and read values
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

/// Factor on [`linear_steps`] while a block is differentiated.
const LINEAR_STEPS_TRAINING: f64 = 1.5;

/// Activations that a block keeps in addition to [`KEPT`], depending on its family: queries, keys
/// and values before their norms; inputs of norms after a branch; the input of the down projection
/// if the gate is a separate operation; and the stream in the compute dtype if no norm precedes the
/// branches.
pub(crate) fn kept_by_family(model: &DecoderConfig) -> BlockWidths {
    let family = model.family;
    let branches = [family.norms.attention, family.norms.feed_forward];
    let count = |has: fn(&BranchNorms) -> bool| branches.iter().filter(|b| has(b)).count() as f64;
    // Without a preceding norm, a branch keeps its input only in the compute dtype.
    let middle = match family.norms.feed_forward.before {
        Some(_) => 0.0,
        None => 1.0,
    };
    let normed_heads = if family.head_norms == HeadNorms::None {
        0.0
    } else {
        1.0
    };
    // The projection with the gates, and the output before they are applied.
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

/// Additional activations that a block keeps for DoRA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoraActivations {
    /// Plain LoRA: nothing is added.
    None,
    /// The projection outputs before their multiplication by the magnitudes.
    Learned,
    /// As `Learned`, plus the operands of the plain f32 operations used with dropout: projection
    /// inputs, their masks, the masked inputs, and the weights.
    Dropped,
}

impl DoraActivations {
    /// Selects the variant for the adapter settings of a run.
    pub fn from_lora(lora: &LoraConfig) -> Self {
        match (lora.use_dora, lora.lora_dropout > 0.0) {
            (false, _) => Self::None,
            (true, false) => Self::Learned,
            (true, true) => Self::Dropped,
        }
    }

    /// Widths of the activations kept per token.
    pub(crate) fn kept_widths(self, dtype: ComputeDtype) -> BlockWidths {
        let f32_ratio = F32 / compute_bytes(dtype);
        let outputs = BlockWidths {
            stream: 2.0,
            hidden: 0.0,
            queries: f32_ratio,
            key_values: 2.0 * f32_ratio,
            intermediate: 2.0 * f32_ratio,
            linear: 0.0,
        };
        match self {
            Self::None => BlockWidths::default(),
            Self::Learned => outputs,
            Self::Dropped => {
                // Each projection input in f32, its mask, and the masked input. With f32 as compute
                // dtype, the attention output is kept already.
                let attended = if dtype == ComputeDtype::Bf16 {
                    1.0
                } else {
                    0.0
                };
                outputs.and(BlockWidths {
                    stream: 2.0 + 2.0 * 5.0,
                    queries: (attended + 2.0) * f32_ratio,
                    intermediate: (1.0 + 2.0) * f32_ratio,
                    ..BlockWidths::default()
                })
            }
        }
    }

    /// Bytes that each differentiated block keeps regardless of the number of tokens.
    pub(crate) fn kept_weights(self, model: &DecoderConfig) -> f64 {
        let layer_bytes = |layer: usize| {
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
            Self::Dropped => F32 * layers.map(layer_bytes).fold(0.0, f64::max),
        }
    }
}

/// Rule that decides how many blocks of a micro-batch keep their activations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeptBlocks {
    setting: GradientCheckpointing,
    /// Whether block inputs leave the GPU.
    offloads_inputs: bool,
    /// Bytes of frozen projections that are not in this GPU's memory.
    weights_elsewhere: f64,
    /// Bytes that the GPUs of a node gather for a micro-batch; 0 if each has all weights.
    gathered: f64,
    n_blocks: usize,
    bytes_per_token: f64,
    /// Bytes of a kept block regardless of the number of tokens.
    bytes_per_block: f64,
    budget: Budget,
}

/// Memory that `auto` may fill.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Budget {
    bytes: f64,
    /// Bytes per token of a micro-batch if no block is kept.
    bytes_per_token: f64,
}

/// Inputs of the rule, except for the device.
#[derive(Debug, Clone, Copy)]
pub struct RunShape<'a> {
    /// `train.gradient_checkpointing`.
    pub setting: GradientCheckpointing,
    /// Shape of the model.
    pub model: &'a DecoderConfig,
    /// Number of trained values.
    pub n_adapter: usize,
    /// The dtype of matrix-multiplication inputs.
    pub compute_dtype: ComputeDtype,
    /// How frozen projections are stored.
    pub quantization: Quantization,
    /// Where a GPU has them.
    pub frozen_weights: FrozenWeights,
    /// Number of GPUs that divide them, if GPUs do.
    pub n_node_ranks: usize,
    /// Additional activations for DoRA.
    pub dora_activations: DoraActivations,
}

impl KeptBlocks {
    /// Creates the rule from the free memory of a device, before weights are loaded.
    ///
    /// On the CPU, `auto` fills at most half of the free memory, and at most twice the size of the
    /// weights: enough for all 30 blocks of SmolLM2 with 1,136 tokens. On a GPU it fills at most
    /// 90 % of the free memory, including the weights, the adapter and the memory of a step that
    /// keeps no blocks.
    pub fn new(shape: RunShape, device: &Device) -> Self {
        let free = free_memory_bytes(device).unwrap_or(0) as f64;
        if is_cpu(device) {
            Self::on_cpu(free, shape)
        } else {
            Self::on_gpu(free, shape)
        }
    }

    /// Creates the rule for a CPU with `free_bytes` of free memory.
    pub(crate) fn on_cpu(free_bytes: f64, shape: RunShape) -> Self {
        // The same number of blocks with quantised weights, so that steps are not slower.
        let weight_bytes = stored_bytes(shape.model, shape.compute_dtype, Quantization::None);
        let max_bytes = MAX_WEIGHT_MULTIPLE * weight_bytes;
        let budget = Budget {
            bytes: (CPU_SHARE * free_bytes).min(max_bytes),
            bytes_per_token: 0.0,
        };
        Self::within(budget, shape, 0.0)
    }

    /// Creates the rule for a GPU with `free_bytes` of free memory.
    pub(crate) fn on_gpu(free_bytes: f64, shape: RunShape) -> Self {
        let RunShape {
            model,
            compute_dtype,
            ..
        } = shape;
        let logits = LOSS_ROWS_ON_GPU as f64 * model.vocab_size as f64;
        let weights = stored_bytes(model, compute_dtype, shape.quantization);
        let resident = weights - bytes_elsewhere(shape)
            + GPU_ADAPTER_COPIES * F32 * shape.n_adapter as f64
            + GPU_LOGITS_COPIES * compute_bytes(compute_dtype) * logits
            + shape.dora_activations.kept_weights(model);
        let offloads_inputs =
            shape.setting == GradientCheckpointing::Mode(CheckpointingMode::Offload);
        let n_inputs = match offloads_inputs {
            true => INPUTS_ON_GPU.min(model.num_hidden_layers),
            false => model.num_hidden_layers,
        };
        let inputs = F32 * (n_inputs * model.hidden_size) as f64;
        let steps = linear_steps(model, compute_dtype);
        let budget = Budget {
            bytes: (GPU_SHARE * free_bytes - resident).max(0.0),
            bytes_per_token: inputs
                + LINEAR_STEPS_TRAINING * steps
                + TRAINING
                    .and(kept_by_family(model))
                    .and(shape.dora_activations.kept_widths(compute_dtype))
                    .bytes_per_token(model, compute_dtype),
        };
        Self {
            offloads_inputs,
            weights_elsewhere: bytes_elsewhere(shape),
            gathered: gathered_bytes(shape),
            ..Self::within(budget, shape, steps)
        }
    }

    fn within(budget: Budget, shape: RunShape, steps: f64) -> Self {
        Self {
            setting: shape.setting,
            offloads_inputs: false,
            weights_elsewhere: 0.0,
            gathered: 0.0,
            n_blocks: shape.model.num_hidden_layers,
            bytes_per_token: steps
                + KEPT
                    .and(kept_by_family(shape.model))
                    .and(shape.dora_activations.kept_widths(shape.compute_dtype))
                    .bytes_per_token(shape.model, shape.compute_dtype),
            bytes_per_block: shape.dora_activations.kept_weights(shape.model),
            budget,
        }
    }

    /// Whether a CUDA GPU keeps block inputs in host memory.
    pub fn offloads_inputs(&self) -> bool {
        self.offloads_inputs
    }

    /// Bytes of frozen projections that are not in this GPU's memory, but in host memory or on the
    /// other GPUs of the node. Below 0 if two copies of a block need more than the others save.
    pub(crate) fn weights_elsewhere(&self) -> f64 {
        self.weights_elsewhere
    }

    /// Bytes of the blocks that the GPUs of a node gather for a micro-batch; 0 if each has all
    /// weights.
    pub(crate) fn gathered_bytes(&self) -> f64 {
        self.gathered
    }

    /// Number of blocks whose activations a micro-batch of `n_tokens` tokens keeps.
    pub fn count(&self, n_tokens: usize) -> usize {
        match self.setting {
            GradientCheckpointing::Mode(CheckpointingMode::None) => self.n_blocks,
            GradientCheckpointing::Mode(CheckpointingMode::Full | CheckpointingMode::Offload) => 0,
            GradientCheckpointing::KeepBlocks(n) => n.min(self.n_blocks),
            GradientCheckpointing::Mode(CheckpointingMode::Auto) => {
                let n_tokens = n_tokens.max(1) as f64;
                let remaining = self.budget.bytes - self.budget.bytes_per_token * n_tokens;
                let bytes_of_block = self.bytes_per_token * n_tokens + self.bytes_per_block;
                ((remaining / bytes_of_block) as usize).min(self.n_blocks)
            }
        }
    }
}

/// Bytes of the weights as they are stored.
pub(crate) fn stored_bytes(
    model: &DecoderConfig,
    compute_dtype: ComputeDtype,
    quantization: Quantization,
) -> f64 {
    let others = model.n_parameters() as f64 - n_projection_values(model);
    compute_bytes(compute_dtype) * others + projection_bytes(model, compute_dtype, quantization)
}

/// Bytes of all frozen projections as they are stored.
fn projection_bytes(model: &DecoderConfig, dtype: ComputeDtype, stored: Quantization) -> f64 {
    let value = match stored {
        Quantization::None => compute_bytes(dtype),
        Quantization::Nf4 => NF4_BYTES,
    };
    value * n_projection_values(model)
}

/// Bytes of frozen projections that are not in the memory of a GPU.
fn bytes_elsewhere(shape: RunShape) -> f64 {
    let n_blocks = shape.model.num_hidden_layers;
    let share = BLOCKS_ON_GPU as f64 / n_blocks.max(1) as f64;
    let on_gpu = match shape.frozen_weights {
        FrozenWeights::Resident => 1.0,
        FrozenWeights::Host => share.min(1.0),
        FrozenWeights::Node => share + 1.0 / shape.n_node_ranks.max(1) as f64,
    };
    (1.0 - on_gpu) * projection_bytes(shape.model, shape.compute_dtype, shape.quantization)
}

/// Bytes that the GPUs of a node gather for a micro-batch: each block for the forward pass, and all
/// but the last two again for the backward pass.
fn gathered_bytes(shape: RunShape) -> f64 {
    if shape.frozen_weights != FrozenWeights::Node {
        return 0.0;
    }
    let n_blocks = shape.model.num_hidden_layers;
    let n_gathers = n_blocks + n_blocks.saturating_sub(BLOCKS_ON_GPU);
    let all = projection_bytes(shape.model, shape.compute_dtype, shape.quantization);
    all * n_gathers as f64 / n_blocks.max(1) as f64
}

/// Number of values of all projections.
fn n_projection_values(model: &DecoderConfig) -> f64 {
    let of_layer = |layer: usize| {
        let indices = 0..model.projections(layer).paths.len();
        indices.map(move |index| projection_features(model, layer, index))
    };
    let features = (0..model.num_hidden_layers).flat_map(of_layer);
    features
        .map(|(inputs, outputs)| inputs as f64 * outputs as f64)
        .sum()
}

impl BlockWidths {
    /// Adds two sets of widths.
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

    /// Bytes per token, averaged over the blocks of `model`.
    pub(crate) fn bytes_per_token(&self, model: &DecoderConfig, dtype: ComputeDtype) -> f64 {
        let [attention, linear] = self.mixer_bytes(model, dtype);
        let layers = model.layers.iter();
        let n_linear = layers.filter(|kind| kind.mixer == Mixer::Linear).count();
        let share = n_linear as f64 / model.layers.len().max(1) as f64;
        self.bytes_without_heads([model.hidden_size, model.intermediate_size], dtype)
            + attention * (1.0 - share)
            + linear * share
    }

    /// Bytes per token of the block kind that needs the most memory.
    pub(crate) fn max_bytes_per_token(&self, model: &DecoderConfig, dtype: ComputeDtype) -> f64 {
        let [attention, linear] = self.mixer_bytes(model, dtype);
        self.bytes_without_heads([model.hidden_size, model.intermediate_size], dtype)
            + attention.max(linear)
    }

    /// Bytes per token of attention, and of linear attention if the model has it.
    fn mixer_bytes(&self, model: &DecoderConfig, dtype: ComputeDtype) -> [f64; 2] {
        let heads = self.queries * (model.num_attention_heads * model.head_dim) as f64
            + self.key_values * (model.num_key_value_heads * model.head_dim) as f64;
        let linear = model.linear.map_or(0.0, |linear| {
            let n_columns: usize = linear.heads.columns().iter().sum();
            self.linear * (n_columns + 2 * linear.heads.values()) as f64
        });
        [heads, linear].map(|numbers| compute_bytes(dtype) * numbers)
    }

    /// Bytes per token for the hidden and feed-forward widths, without queries, keys and values.
    pub(crate) fn bytes_without_heads(
        &self,
        [hidden, intermediate]: [usize; 2],
        dtype: ComputeDtype,
    ) -> f64 {
        let between = self.hidden * hidden as f64 + self.intermediate * intermediate as f64;
        F32 * self.stream * hidden as f64 + compute_bytes(dtype) * between
    }
}

/// Bytes of a value passed between two operations of a block.
pub(crate) fn compute_bytes(dtype: ComputeDtype) -> f64 {
    dtype.dtype().size() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(setting: GradientCheckpointing) -> KeptBlocks {
        KeptBlocks {
            setting,
            offloads_inputs: false,
            weights_elsewhere: 0.0,
            gathered: 0.0,
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
    fn auto_keeps_blocks_that_fit_and_other_settings_are_exact() {
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
    fn auto_on_a_gpu_subtracts_weights_and_a_minimal_step() {
        let model = llama_3_8b();
        let shape = RunShape {
            setting: GradientCheckpointing::Mode(CheckpointingMode::Auto),
            model: &model,
            n_adapter: 41_943_040,
            compute_dtype: ComputeDtype::Bf16,
            quantization: Quantization::None,
            frozen_weights: FrozenWeights::Resident,
            n_node_ranks: 1,
            dora_activations: DoraActivations::None,
        };
        let n_kept = |gib: f64, n_tokens| {
            KeptBlocks::on_gpu(gib * (1u64 << 30) as f64, shape).count(n_tokens)
        };
        // An H100 and an H200 keep all blocks of 8,192 tokens; on 24 GB only the weights fit.
        assert_eq!([n_kept(79.1, 8192), n_kept(139.8, 8192)], [32, 32]);
        assert_eq!([n_kept(22.0, 8192), n_kept(0.0, 8192)], [0, 0]);
        let half = n_kept(40.0, 8192);
        assert!((8..24).contains(&half), "{half}");
        // Shorter micro-batches keep more blocks, longer ones fewer.
        assert!(n_kept(40.0, 4096) > half && half > n_kept(40.0, 12_288));
        // Weights in host memory leave room for activations on 24 GB.
        let small = 22.0 * (1u64 << 30) as f64;
        let stored = |frozen_weights| RunShape {
            frozen_weights,
            n_node_ranks: 8,
            ..shape
        };
        let streamed = KeptBlocks::on_gpu(small, stored(FrozenWeights::Host));
        assert!(streamed.count(8192) > 0);
        assert!((13.0e9..13.2e9).contains(&streamed.weights_elsewhere()));
        // An eighth of all, and two blocks.
        let divided = KeptBlocks::on_gpu(small, stored(FrozenWeights::Node));
        assert!((11.2e9..11.5e9).contains(&divided.weights_elsewhere()));
        assert!((27.0e9..27.2e9).contains(&divided.gathered_bytes()));
        let offloaded = RunShape {
            setting: GradientCheckpointing::Mode(CheckpointingMode::Offload),
            ..shape
        };
        let [on_gpu, on_cpu] =
            [KeptBlocks::on_gpu, KeptBlocks::on_cpu].map(|rule| rule(1e12, offloaded));
        assert_eq!([on_gpu.count(100), on_cpu.count(100)], [0, 0]);
        assert_eq!(
            [on_gpu.offloads_inputs(), on_cpu.offloads_inputs()],
            [true, false]
        );
        let nf4 = RunShape {
            quantization: Quantization::Nf4,
            ..shape
        };
        let gib = (1u64 << 30) as f64;
        assert!(KeptBlocks::on_gpu(22.0 * gib, nf4).count(2048) > 0);
        // 6.98 billion values with 4.127 bits, and 1.05 billion with 16.
        let bytes = stored_bytes(&model, ComputeDtype::Bf16, Quantization::Nf4);
        assert!((5.6e9..5.8e9).contains(&bytes), "{bytes}");
    }
}
