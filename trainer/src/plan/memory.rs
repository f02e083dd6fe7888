//! Shapes of a run to its peak memory, part by part.
//!
//! The peak is that of the largest phase, not the sum of everything: activations are gone when the
//! optimizer runs, and both are gone when completions are generated. What lives through all phases
//! is counted in each.

use serde::Serialize;

use super::measured::{
    ADAPTER_COPIES, BlockConstants, EXAMPLE_BYTES_PER_TOKEN, F32, FORWARD, LOGITS_COPIES,
    PROGRAM_BYTES, TOKENIZER_BYTES_PER_ENTRY, TRAINING, UPDATE_COPIES,
};
use super::workload::{BatchShape, EvaluationWork};
use crate::models::ModelConfig;
use crate::models::kv_cache::PREFILL_TOKENS;
use crate::recipes::sft::CHUNK_ROWS;

/// One thing that takes memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Part {
    /// What it is.
    pub name: String,
    /// How much of it lives at once.
    pub bytes: u64,
}

/// A stretch of the run during which the same things are alive.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Phase {
    /// What the run does.
    pub name: &'static str,
    /// What is alive, largest first.
    pub parts: Vec<Part>,
    /// Sum of the parts.
    pub bytes: u64,
}

/// Predicted memory of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryPlan {
    /// Bytes of the largest phase.
    pub peak_bytes: u64,
    /// Its name.
    pub peak_phase: &'static str,
    /// Bytes of the training phases without the encoder of the metrics.
    pub step_bytes: u64,
    /// All phases, largest first.
    pub phases: Vec<Phase>,
}

/// What the memory of a run follows from.
#[derive(Debug, Clone)]
pub(super) struct MemoryInput<'a> {
    pub model: &'a ModelConfig,
    /// Values of the base model, tied tensors once.
    pub n_weights: usize,
    /// Values of the adapter.
    pub n_adapter: usize,
    /// Input widths of the adapted projections of one block, summed; 0 without dropout.
    pub dropped_width: usize,
    /// Entries of the tokenizer's vocabulary.
    pub vocabulary: usize,
    /// Tokens of all examples.
    pub n_example_tokens: usize,
    /// Blocks that keep their activations.
    pub n_kept_blocks: usize,
    /// Whether gradients of several micro-batches are added.
    pub accumulates: bool,
    /// The micro-batches that can be the largest.
    pub batches: &'a [BatchShape],
    pub evaluation: Option<&'a EvaluationWork>,
    /// Values of the sentence encoder, and entries of its vocabulary.
    pub encoder: Option<(usize, usize)>,
}

/// Predicts the memory of every phase.
pub(super) fn memory_plan(input: &MemoryInput) -> MemoryPlan {
    let resident = resident(input);
    let mut phases = Vec::new();
    let mut push = |name, own: Vec<Part>| {
        let mut parts: Vec<Part> = resident.iter().cloned().chain(own).collect();
        parts.retain(|part| part.bytes > 0);
        parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
        let bytes = parts.iter().map(|part| part.bytes).sum();
        phases.push(Phase { name, parts, bytes });
    };
    push("training step", largest(input.batches.iter().map(|shape| training(input, shape))));
    push("optimizer update", update(input));
    if let Some(evaluation) = input.evaluation {
        let batches = evaluation.batches.iter();
        let generations = batches.map(|lengths| generation(input, evaluation, lengths));
        push("generation", largest(generations));
    }
    let step_bytes = match input.encoder {
        Some(_) => memory_plan(&MemoryInput { encoder: None, evaluation: None, ..*input }).peak_bytes,
        None => phases[0].bytes.max(phases[1].bytes),
    };
    phases.sort_by_key(|phase| std::cmp::Reverse(phase.bytes));
    MemoryPlan { step_bytes, peak_bytes: phases[0].bytes, peak_phase: phases[0].name, phases }
}

fn part(name: impl Into<String>, bytes: f64) -> Part {
    Part { name: name.into(), bytes: bytes.ceil() as u64 }
}

fn largest(candidates: impl Iterator<Item = Vec<Part>>) -> Vec<Part> {
    let sum = |parts: &Vec<Part>| parts.iter().map(|part| part.bytes).sum::<u64>();
    candidates.max_by_key(sum).unwrap_or_default()
}

/// What lives from the first step to the last.
fn resident(input: &MemoryInput) -> Vec<Part> {
    let tokenizers = input.vocabulary + input.encoder.map_or(0, |(_, vocabulary)| vocabulary);
    let program = PROGRAM_BYTES
        + TOKENIZER_BYTES_PER_ENTRY * tokenizers as f64
        + EXAMPLE_BYTES_PER_TOKEN * input.n_example_tokens as f64;
    vec![
        part("base weights", F32 * input.n_weights as f64),
        part("adapter and its moments", ADAPTER_COPIES * F32 * input.n_adapter as f64),
        part("encoder of the metrics", F32 * input.encoder.map_or(0, |(n, _)| n) as f64),
        part("program, tokenizers, examples", program),
    ]
}

fn training(input: &MemoryInput, shape: &BatchShape) -> Vec<Part> {
    let model = input.model;
    let block = block_bytes(input, shape, &TRAINING);
    let n_inputs = model.num_hidden_layers.saturating_sub(input.n_kept_blocks);
    let tokens = shape.n_tokens as f64;
    let gradients = if input.accumulates { 2.0 } else { 1.0 };
    let logits = logits(model, shape.n_trained_tokens.min(CHUNK_ROWS)) * LOGITS_COPIES;
    // The head comes before the first block is differentiated, so the two never meet.
    let working = match logits > block {
        true => part(format!("logits of {CHUNK_ROWS} rows"), logits),
        false => part("activations of one block", block),
    };
    vec![
        part("saved block inputs", F32 * (model.hidden_size * n_inputs) as f64 * tokens),
        part("activations of kept blocks", block * input.n_kept_blocks as f64),
        working,
        part("gradients", F32 * gradients * input.n_adapter as f64),
    ]
}

fn update(input: &MemoryInput) -> Vec<Part> {
    vec![part("temporaries of the update", UPDATE_COPIES * F32 * input.n_adapter as f64)]
}

fn generation(
    input: &MemoryInput,
    evaluation: &EvaluationWork,
    lengths: &[usize],
) -> Vec<Part> {
    let model = input.model;
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let columns = lengths.len() * (longest + evaluation.max_new_tokens);
    let cache_width = 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim;
    let prefill = block_bytes(input, &prefill_shape(lengths), &FORWARD);
    let decode = logits(model, lengths.len()) * 2.0;
    vec![
        part("keys and values of generation", F32 * (columns * cache_width) as f64),
        match prefill > decode {
            true => part("activations of reading prompts", prefill),
            false => part("logits of generation", decode),
        },
    ]
}

/// The most tokens that are read in one go, as the cache is filled.
fn prefill_shape(lengths: &[usize]) -> BatchShape {
    let mut parts: Vec<Vec<usize>> = vec![Vec::new()];
    for &length in lengths {
        let last = parts.len() - 1;
        let n_tokens: usize = parts[last].iter().sum();
        if n_tokens > 0 && n_tokens + length > PREFILL_TOKENS {
            parts.push(Vec::new());
        }
        let last = parts.len() - 1;
        parts[last].push(length);
    }
    let shapes = parts.iter().map(|part| BatchShape::of_lengths(part));
    shapes.max_by_key(|shape| shape.n_tokens).unwrap_or_default()
}

fn block_bytes(input: &MemoryInput, shape: &BatchShape, constants: &BlockConstants) -> f64 {
    let model = input.model;
    let heads = model.num_attention_heads as f64;
    let width = constants.hidden * model.hidden_size as f64
        + constants.queries * heads * model.head_dim as f64
        + constants.key_values * (model.num_key_value_heads * model.head_dim) as f64
        + constants.intermediate * model.intermediate_size as f64
        + constants.dropped * input.dropped_width as f64;
    let scores = constants.scores * heads * shape.squared_lengths
        + constants.scores_of_longest * heads * (shape.longest as f64).powi(2);
    F32 * (width * shape.n_tokens as f64 + scores)
}

fn logits(model: &ModelConfig, rows: usize) -> f64 {
    F32 * (rows * model.vocab_size) as f64
}
