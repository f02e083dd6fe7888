//! Predicts the peak memory of a run from its shapes, split into parts.
//!
//! The peak is the largest phase, not the sum of all phases. Activation buffers are retained for
//! the next step. They are therefore part of an update, but are released before evaluations and
//! saves. Parts that live for the whole run are included in each phase.

use serde::Serialize;
use tooltune_kernels::ComputeDtype;

use super::advice::Cause;
use super::measured::{
    ADAPTER_COPIES, DOUBLED_COPIES, EVALUATION_BYTES, EXAMPLE_BYTES_PER_TOKEN,
    F32_EVALUATION_BYTES, FORWARD, PACKED_COPIES, PROGRAM_BYTES, READING, SAVE_COPIES,
    TOKENIZER_BYTES_PER_ENTRY, UPDATE_COPIES, WHOLE_WEIGHT_COPIES,
};
use super::retriever::{RetrieverNeeds, n_matrix_values};
use super::step::{chunk_bytes, training};
use super::workload::{BatchShape, EvaluationWork};
use crate::config::Config;
use crate::encoder::PASS_TOKENS;
use crate::models::DecoderConfig;
use crate::models::kv_cache::PREFILL_TOKENS;
use crate::models::layers::Mixer;
use crate::models::load::Quantization;
use crate::models::minilm::{MiniLmConfig, ParameterLayout};
use crate::recipes::kept_blocks::{BlockWidths, F32, KeptBlocks, compute_bytes, stored_bytes};

/// Limit of one part, an exabyte, so that sums of parts do not overflow.
const MAX_PART_BYTES: f64 = 1e18;

/// Name of the phase that writes a checkpoint.
pub(super) const SAVING: &str = "saving";

/// Name of the phase that generates completions.
pub const GENERATION: &str = "generation";

/// One use of memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Part {
    /// Description.
    pub name: String,
    /// Bytes that are alive at once.
    pub bytes: u64,
    /// The quantity that the size depends on.
    #[serde(skip)]
    pub cause: Cause,
}

/// A phase of the run with constant memory use.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Phase {
    /// Description of the phase.
    pub name: &'static str,
    /// Parts, largest first.
    pub parts: Vec<Part>,
    /// Sum of the parts.
    pub bytes: u64,
}

/// Predicted memory of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryPlan {
    /// Bytes of the largest phase.
    pub peak_bytes: u64,
    /// Name of the largest phase.
    pub peak_phase: &'static str,
    /// All phases, largest first.
    pub phases: Vec<Phase>,
}

/// Inputs of the memory prediction.
#[derive(Debug, Clone)]
pub(super) struct MemoryInput<'a> {
    pub config: &'a Config,
    pub model: &'a DecoderConfig,
    /// Number of trained values.
    pub n_adapter: usize,
    /// Number of trained values that belong to fully trained weights of the model.
    pub n_whole: usize,
    /// The dtype of matrix-multiplication inputs.
    pub compute_dtype: ComputeDtype,
    /// How frozen projections are stored.
    pub quantization: Quantization,
    /// Size of the tokenizer's vocabulary.
    pub vocabulary: usize,
    /// Tokens of all examples.
    pub n_example_tokens: usize,
    /// How many blocks keep their activations.
    pub kept_blocks: KeptBlocks,
    /// Number of supervised rows whose logits are alive at once.
    pub loss_rows: usize,
    /// Micro-batches that may be the largest.
    pub batches: &'a [BatchShape],
    pub evaluation: Option<&'a EvaluationWork>,
    /// Encoders that evaluations load, to compare texts or rank documents.
    pub encoders: &'a [MiniLmConfig],
    /// The retriever trained in the same run.
    pub retriever: Option<&'a RetrieverNeeds>,
}

impl MemoryInput<'_> {
    /// Whether the head is fully trained.
    pub(super) fn trains_head(&self) -> bool {
        let mut modules = self.config.lora.modules_to_save.iter();
        modules.any(|module| module == "lm_head")
    }
}

/// Predicts the memory of all phases.
pub(super) fn memory_plan(input: &MemoryInput) -> MemoryPlan {
    let mut resident = resident(input);
    let step = largest(input.batches.iter().map(|shape| training(input, shape)));
    let step_bytes = step.iter().map(|part| part.bytes).sum::<u64>() as f64;
    let copies =
        |name: &str, copies: f64| part(Cause::Adapter, name, copies * F32 * input.n_adapter as f64);
    let update = vec![
        copies("temporaries of the update", UPDATE_COPIES),
        part(
            Cause::Adapter,
            "gradients of whole weights",
            WHOLE_WEIGHT_COPIES * F32 * input.n_whole as f64,
        ),
        part(Cause::Batch, "buffers reused by the next step", step_bytes),
    ];
    let doubled = match input.config.lora.principal_init() {
        Some(_) => DOUBLED_COPIES,
        None => 0.0,
    };
    let save = vec![copies(
        "copies being written to disk",
        SAVE_COPIES + doubled,
    )];
    let mut phases = vec![
        ("training step", step),
        ("optimizer update", update),
        (SAVING, save),
    ];
    if let Some(evaluation) = input.evaluation {
        phases.extend(evaluation_phases(input, evaluation));
    }
    if let Some(retriever) = input.retriever {
        resident.extend(retriever.resident());
        phases.extend(retriever.phases(step_bytes));
    }
    from_phases(&resident, phases)
}

/// Consecutive phases of an evaluation.
fn evaluation_phases(
    input: &MemoryInput,
    evaluation: &EvaluationWork,
) -> Vec<(&'static str, Vec<Part>)> {
    let mut phases = Vec::new();
    if evaluation.n_loss_rows > 0 {
        phases.push(("evaluation loss", loss(input, &evaluation.longest_loss_row)));
    }
    let retriever = input.retriever.map(|retriever| {
        let bytes = F32 * n_matrix_values(&retriever.config) as f64;
        part(Cause::Retriever, "packed retriever matrices", bytes)
    });
    if !evaluation.batches.is_empty() {
        let batches = evaluation.batches.iter();
        let mut parts = largest(batches.map(|lengths| generation(input, evaluation, lengths)));
        parts.extend(retriever.clone());
        phases.push((GENERATION, parts));
    }
    let trained_encoder = input.retriever.map(|retriever| &retriever.config);
    if let Some(encoder) = trained_encoder
        .or(input.encoders.first())
        .filter(|_| evaluation.encodes)
    {
        let widths = [encoder.hidden_size, encoder.intermediate_size];
        let token_bytes = READING.bytes_without_heads(widths, ComputeDtype::F32);
        let mut parts = vec![part(
            Cause::Encoder,
            "activations of the encoder",
            token_bytes * PASS_TOKENS as f64,
        )];
        parts.extend(retriever);
        phases.push(("reading texts with the encoder", parts));
    }
    phases
}

/// Adds the resident parts to each phase and sorts the phases, largest first.
///
/// # Panics
///
/// Panics if `phases` is empty, which is a bug in the caller.
pub(super) fn from_phases(resident: &[Part], phases: Vec<(&'static str, Vec<Part>)>) -> MemoryPlan {
    let phase = |(name, own): (&'static str, Vec<Part>)| {
        let mut parts: Vec<Part> = resident.iter().cloned().chain(own).collect();
        parts.retain(|part| part.bytes > 0);
        parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
        let bytes = parts.iter().map(|part| part.bytes).sum();
        Phase { name, parts, bytes }
    };
    let mut phases: Vec<Phase> = phases.into_iter().map(phase).collect();
    phases.sort_by_key(|phase| std::cmp::Reverse(phase.bytes));
    MemoryPlan {
        peak_bytes: phases[0].bytes,
        peak_phase: phases[0].name,
        phases,
    }
}

pub(super) fn part(cause: Cause, name: impl Into<String>, bytes: f64) -> Part {
    Part {
        cause,
        name: name.into(),
        bytes: bytes.ceil().min(MAX_PART_BYTES) as u64,
    }
}

fn largest(candidates: impl Iterator<Item = Vec<Part>>) -> Vec<Part> {
    let sum = |parts: &Vec<Part>| parts.iter().map(|part| part.bytes).sum::<u64>();
    candidates.max_by_key(sum).unwrap_or_default()
}

/// Parts that live for the whole run.
fn resident(input: &MemoryInput) -> Vec<Part> {
    let encoders = input.encoders.iter();
    let tokenizers = input.vocabulary + encoders.clone().map(|e| e.vocab_size).sum::<usize>();
    let program = PROGRAM_BYTES
        + TOKENIZER_BYTES_PER_ENTRY * tokenizers as f64
        + EXAMPLE_BYTES_PER_TOKEN * input.n_example_tokens as f64;
    // Parameters, plus matrices packed for matmuls.
    let n_values = |e: &MiniLmConfig| ParameterLayout::new(e).len() + n_matrix_values(e);
    let remaining = match (&input.evaluation, input.compute_dtype) {
        (None, _) => 0.0,
        (Some(_), ComputeDtype::Bf16) => EVALUATION_BYTES,
        (Some(_), ComputeDtype::F32) => EVALUATION_BYTES + F32_EVALUATION_BYTES,
    };
    vec![
        part(Cause::Weights, "base weights", weight_bytes(input)),
        part(
            Cause::Adapter,
            "adapter and its moments",
            ADAPTER_COPIES * F32 * input.n_adapter as f64,
        ),
        part(
            Cause::Adapter,
            "packed LoRA factors",
            PACKED_COPIES
                * compute_bytes(input.compute_dtype)
                * (input.n_adapter - input.n_whole) as f64,
        ),
        part(
            Cause::Adapter,
            "initial LoRA factors",
            match input.config.lora.principal_init() {
                Some(_) => F32 * input.n_adapter as f64,
                None => 0.0,
            },
        ),
        part(
            Cause::Encoder,
            "evaluation encoders",
            F32 * encoders.map(n_values).sum::<usize>() as f64,
        ),
        part(Cause::Program, "memory kept after evaluations", remaining),
        part(
            Cause::Program,
            "program, tokenizers, examples, heap",
            program,
        ),
    ]
}

/// Parts for the held-out loss of a row: its blocks one by one, then its logits.
fn loss(input: &MemoryInput, shape: &BatchShape) -> Vec<Part> {
    let block = block_bytes(input, shape.n_tokens, &FORWARD);
    let logits = chunk_bytes(input, shape);
    vec![if logits > block {
        part(
            Cause::EvalRows,
            format!("logits of {} rows", input.loss_rows),
            logits,
        )
    } else {
        part(Cause::EvalRows, "activations of one block", block)
    }]
}

fn generation(input: &MemoryInput, evaluation: &EvaluationWork, lengths: &[usize]) -> Vec<Part> {
    let model = input.model;
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let row = longest as f64 + evaluation.max_new_tokens as f64;
    // Fewer rows are generated at a time if they need more, but at least one.
    let limit = input.config.eval.kv_cache_tokens;
    let limit = limit.map_or(f64::INFINITY, |tokens| row.max(tokens as f64));
    let columns = (lengths.len() as f64 * row).min(limit);
    let count = |mixer| {
        model
            .layers
            .iter()
            .filter(|kind| kind.mixer == mixer)
            .count()
    };
    let cache_width = 2 * count(Mixer::Attention) * model.num_key_value_heads * model.head_dim;
    let states = model.linear.map_or(0.0, |linear| {
        let tokens = (linear.kernel - 1) * linear.heads.width();
        let state = linear.heads.values() * linear.heads.key_dim;
        let row = F32 * state as f64 + compute_bytes(input.compute_dtype) * tokens as f64;
        (lengths.len() * count(Mixer::Linear)) as f64 * row
    });
    let prefill = block_bytes(input, prefill_tokens(lengths), &FORWARD);
    let decode = logits(model, lengths.len());
    vec![
        part(
            Cause::Generation,
            "KV cache",
            compute_bytes(input.compute_dtype) * columns * cache_width as f64,
        ),
        part(Cause::Generation, "states of linear attention", states),
        if prefill > decode {
            part(Cause::Generation, "activations of the prompts", prefill)
        } else {
            part(Cause::Generation, "logits of generation", decode)
        },
    ]
}

/// Maximum number of tokens in one prefill pass.
fn prefill_tokens(lengths: &[usize]) -> usize {
    let mut most = 0;
    let mut n_tokens = 0usize;
    for &length in lengths {
        n_tokens = if n_tokens.saturating_add(length) > PREFILL_TOKENS {
            length
        } else {
            n_tokens + length
        };
        most = most.max(n_tokens);
    }
    most
}

fn block_bytes(input: &MemoryInput, n_tokens: usize, widths: &BlockWidths) -> f64 {
    n_tokens as f64 * widths.max_bytes_per_token(input.model, input.compute_dtype)
}

fn weight_bytes(input: &MemoryInput) -> f64 {
    let stored = (input.compute_dtype, input.quantization);
    let all = base_weight_bytes(input.model, stored, input.trains_head());
    all - input.kept_blocks.weights_elsewhere()
}

/// Bytes of the base weights. Packed weights are stored once, but a frozen head is stored twice,
/// once per direction.
pub(super) fn base_weight_bytes(
    model: &DecoderConfig,
    (compute_dtype, quantization): (ComputeDtype, Quantization),
    trains_head: bool,
) -> f64 {
    let head = match trains_head {
        true => 0,
        false => model.vocab_size * model.hidden_size,
    };
    let head_bytes = compute_bytes(compute_dtype) * head as f64;
    head_bytes + stored_bytes(model, compute_dtype, quantization)
}

fn logits(model: &DecoderConfig, rows: usize) -> f64 {
    F32 * (rows * model.vocab_size) as f64
}

/// Formats a number of bytes.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{:.0} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.0} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}
