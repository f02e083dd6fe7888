//! Predicts the memory of a training step at its peaks.
//!
//! The prediction follows [`crate::optim::backward`]: after its attention, the last block computes
//! only supervised rows, and the activations of a block are freed before the block below it is
//! differentiated.

use tooltune_kernels::ComputeDtype;

use super::advice::Cause;
use super::measured::{LOGITS_COPIES, SUM_BYTES, TRAINED_LOGITS_COPIES};
use super::memory::{MemoryInput, Part, part};
use super::workload::BatchShape;
use crate::models::DecoderConfig;
use crate::models::load::projection_features;
use crate::recipes::kept_blocks::{
    BlockWidths, DoraActivations, F32, KEPT, compute_bytes, kept_by_family,
};

/// Temporaries while the feed-forward part is differentiated, in addition to kept activations: the
/// output and its gradient in the stream, and the gradients of the down input, gate and up.
const FEED_FORWARD: BlockWidths = BlockWidths {
    stream: 2.0,
    hidden: 0.0,
    queries: 0.0,
    key_values: 0.0,
    intermediate: 3.0,
    linear: 0.0,
};

/// Temporaries while attention is differentiated: the shared input of queries, keys and values, the
/// gradients of all four, and the gradient of the attention output.
const ATTENTION: BlockWidths = BlockWidths {
    stream: 2.0,
    hidden: 2.0,
    queries: 2.0,
    key_values: 2.0,
    intermediate: 0.0,
    linear: 2.0,
};

/// Bytes that are alive at one moment of a step.
#[derive(Debug, Clone, Copy, Default)]
struct Moment {
    /// Inputs of the blocks that will be recomputed.
    inputs: f64,
    /// Activations of the blocks that kept them and are not differentiated yet.
    kept: f64,
    /// Activations of the block being differentiated.
    block: f64,
    logits: f64,
    gradient: f64,
}

impl Moment {
    fn bytes(&self) -> f64 {
        self.inputs + self.kept + self.block + self.logits + self.gradient
    }
}

/// Memory of a training step on a micro-batch of this shape.
pub(super) fn training(input: &MemoryInput, shape: &BatchShape) -> Vec<Part> {
    let moments = moments(input, shape).into_iter();
    let most = moments.max_by(|a, b| a.bytes().total_cmp(&b.bytes()));
    let most = most.unwrap_or_default();
    // Several ranks need several micro-batches, so this includes them.
    let accumulates = input.config.train.gradient_accumulation_steps > 1;
    let sums = match accumulates {
        true => SUM_BYTES * input.n_adapter as f64,
        false => 0.0,
    };
    let rows = input.loss_rows;
    vec![
        part(Cause::Batch, "saved block inputs", most.inputs),
        part(Cause::Batch, "kept activations", most.kept),
        part(Cause::Batch, "activations of one block", most.block),
        part(Cause::Batch, format!("logits of {rows} rows"), most.logits),
        part(Cause::Adapter, "gradient", most.gradient),
        part(Cause::Adapter, "exact sums of gradients", sums),
        // One weight at a time is transposed for its matmul; the freed copies fragment the heap.
        part(
            Cause::Weights,
            "transposed weights",
            largest_stack(input.model) * compute_bytes(input.compute_dtype),
        ),
    ]
}

fn moments(input: &MemoryInput, shape: &BatchShape) -> Vec<Moment> {
    let (model, dtype) = (input.model, input.compute_dtype);
    let dora_activations = DoraActivations::from_lora(&input.config.lora);
    let most = |n: usize, widths: &BlockWidths| n as f64 * widths.max_bytes_per_token(model, dtype);
    let (n, m) = (shape.n_tokens, shape.n_trained_tokens.min(shape.n_tokens));
    let weights = dora_activations.kept_weights(model);
    let widths = KEPT
        .and(kept_by_family(model))
        .and(dora_activations.kept_widths(dtype));
    let kept_bytes = n as f64 * widths.bytes_per_token(model, dtype) + weights;
    let (before, after) = split_at_attention(widths, dora_activations);
    let last = most(n, &before) + most(m, &after) + weights;
    let [attention, feed_forward] =
        transients(dora_activations, dtype).map(|widths| widths.and(branch_widths(model, dtype)));
    let n_kept = input.kept_blocks.count(n);
    let n_lower = model.num_hidden_layers.saturating_sub(1);
    let n_lower_kept = n_kept.saturating_sub(1).min(n_lower);
    let saved_input = F32 * (model.hidden_size * n) as f64;
    let lower = Moment {
        inputs: saved_input * (n_lower - n_lower_kept) as f64,
        kept: kept_bytes * n_lower_kept as f64,
        ..Moment::default()
    };
    let head = Moment {
        kept: lower.kept + if n_kept > 0 { last } else { saved_input },
        logits: chunk_bytes(input, shape),
        ..lower
    };
    let last_block = Moment {
        block: last + most(n, &attention).max(most(m, &feed_forward)),
        ..lower
    };
    let mut moments = vec![head, last_block];
    if n_lower > 0 {
        let block = most(n, &widths) + weights + most(n, &feed_forward).max(most(n, &attention));
        // Two candidates: the block below the last one, and the first block, when the gradients of
        // all others exist.
        let is_kept = n_lower_kept > 0;
        moments.push(Moment {
            inputs: lower.inputs - if is_kept { 0.0 } else { saved_input },
            kept: lower.kept - if is_kept { kept_bytes } else { 0.0 },
            block,
            ..lower
        });
        moments.push(Moment {
            block,
            gradient: gradient(input),
            ..Moment::default()
        });
    }
    moments.push(Moment {
        gradient: 2.0 * gradient(input),
        ..Moment::default()
    });
    moments
}

/// Temporaries while attention and while the feed-forward part are differentiated.
///
/// DoRA adds three f32 tensors: the gradient of the magnitudes' outputs, the gradient of their
/// inputs, and the product of both.
fn transients(dora_activations: DoraActivations, dtype: ComputeDtype) -> [BlockWidths; 2] {
    let of_f32 = F32 / compute_bytes(dtype);
    match dora_activations {
        DoraActivations::None => [ATTENTION, FEED_FORWARD],
        DoraActivations::Learned | DoraActivations::Dropped => [
            BlockWidths {
                queries: 2.0 + 2.0 * of_f32,
                key_values: 2.0 + 4.0 * of_f32,
                // One input per projection.
                stream: ATTENTION.stream + 3.0,
                ..ATTENTION
            },
            BlockWidths {
                intermediate: 6.0 * of_f32,
                ..FEED_FORWARD
            },
        ],
    }
}

/// Temporaries if a branch output is normalized or scaled before it is added to the stream: its
/// gradient in f32 and in the compute dtype.
fn branch_widths(model: &DecoderConfig, dtype: ComputeDtype) -> BlockWidths {
    let is_added_at_once =
        model.family.norms.feed_forward.after.is_none() && model.residual_multiplier == 1.0;
    if is_added_at_once || dtype == ComputeDtype::F32 {
        return BlockWidths::default();
    }
    BlockWidths {
        stream: 1.0,
        hidden: 1.0,
        ..BlockWidths::default()
    }
}

/// Splits the activations of a block: up to its attention, and after it.
fn split_at_attention(
    widths: BlockWidths,
    dora_activations: DoraActivations,
) -> (BlockWidths, BlockWidths) {
    let stream = match dora_activations {
        DoraActivations::None | DoraActivations::Learned => 1.0,
        DoraActivations::Dropped => 8.0,
    };
    let before = BlockWidths {
        stream,
        intermediate: 0.0,
        ..widths
    };
    let after = BlockWidths {
        stream: widths.stream - stream,
        intermediate: widths.intermediate,
        ..BlockWidths::default()
    };
    (before, after)
}

/// Number of values in the largest stack of projections that one matmul computes.
fn largest_stack(model: &DecoderConfig) -> f64 {
    let layer_values = |layer: usize| {
        let stacks = model.projections(layer).stacks.iter();
        let n_values = stacks.map(|stack| {
            let values = stack.clone().map(|index| {
                let (inputs, outputs) = projection_features(model, layer, index);
                inputs as f64 * outputs as f64
            });
            values.sum::<f64>()
        });
        n_values.fold(0.0, f64::max)
    };
    (0..model.num_hidden_layers)
        .map(layer_values)
        .fold(0.0, f64::max)
}

fn gradient(input: &MemoryInput) -> f64 {
    F32 * (input.n_adapter - input.n_whole) as f64
}

/// Bytes of the logits of a chunk of supervised rows, including the teacher's for
/// self-distillation.
pub(super) fn chunk_bytes(input: &MemoryInput, shape: &BatchShape) -> f64 {
    let n_logits = shape.n_trained_tokens.min(input.loss_rows) * input.model.vocab_size;
    let copies = if input.trains_head() {
        TRAINED_LOGITS_COPIES * F32
    } else {
        LOGITS_COPIES * compute_bytes(input.compute_dtype)
    };
    let models = match input.config.train.self_distillation_alpha > 0.0 {
        true => 2.0,
        false => 1.0,
    };
    models * copies * n_logits as f64
}
