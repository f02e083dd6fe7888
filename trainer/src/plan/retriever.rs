//! Predicts pairs, tokens and memory of a retriever.
//!
//! Unlike a language model, a retriever trains all its parameters. Gradient and moments therefore
//! need as much memory as the activations of a small batch.

use serde::Serialize;
use tooltune_agents::pairs::PairBatch;
use tooltune_kernels::ComputeDtype;
use tooltune_rows::batches::Cursor;

use super::advice::Cause;
use super::measured::{
    ADAPTER_COPIES, ENCODER, ENCODER_STREAMS, EXAMPLE_BYTES_PER_TOKEN, RETRIEVER_COPIES,
    RETRIEVER_PROGRAM_BYTES, RETRIEVER_SAVE_COPIES, TOKENIZER_BYTES_PER_ENTRY,
};
use super::memory::{Part, from_phases, part};
use super::workload::MAX_SIMULATED_STEPS;
use super::{Needs, checkpoint_bytes, n_checkpoints, size};
use crate::config::{Config, RetrieverConfig};
use crate::encoder::cut_texts::CutTexts;
use crate::models::load::Quantization;
use crate::models::minilm::{MiniLmConfig, ParameterLayout};
use crate::recipes::kept_blocks::{F32, compute_bytes};
use crate::recipes::retriever::RetrieverPreparation;

/// Mini-batches are worth their time only if they save at least this share of a step's memory.
const MIN_SAVED_SHARE: f64 = 0.1;

/// Name of the phase that trains a retriever.
const TRAINING: &str = "retriever step";

/// Texts that are differentiated at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TextShape {
    /// Number of texts.
    pub n_texts: usize,
    /// Total tokens.
    pub n_tokens: usize,
}

impl TextShape {
    /// Returns the larger one (by tokens) of this shape and the shape of texts with these lengths.
    fn larger(self, lengths: &[usize]) -> Self {
        let n_tokens: usize = lengths.iter().sum();
        match n_tokens > self.n_tokens {
            true => Self {
                n_texts: lengths.len(),
                n_tokens,
            },
            false => self,
        }
    }
}

/// Predicted work and needs of a retriever.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RetrieverPlan {
    /// Number of training pairs.
    pub pairs: usize,
    /// Distinct queries.
    pub queries: usize,
    /// Distinct documents.
    pub documents: usize,
    /// Optimizer steps.
    pub steps: u64,
    /// Tokens of the largest step, assuming that the longest documents are mined.
    pub largest_step_tokens: usize,
    /// Number of parameters, all trained.
    pub parameters: usize,
    /// Bytes that stay allocated for the whole run.
    pub resident_bytes: u64,
    /// Additional peak bytes of a step.
    pub step_bytes: u64,
    /// Bytes of a step with all of its texts at once, if `mini_batch_size` splits them.
    pub whole_step_bytes: Option<u64>,
    /// Bytes of the retriever in a checkpoint.
    pub checkpoint_bytes: u64,
    /// Number of texts beyond the encoder's length limit, and of texts with equal tokens.
    pub cut: CutTexts,
    /// Number of batches of the first epoch that are merged with others, because they have no wrong
    /// document.
    pub joined_batches: usize,
    #[serde(skip)]
    pub(super) needs: RetrieverNeeds,
}

impl RetrieverPlan {
    /// A remark if `retriever.mini_batch_size` costs time and saves hardly any memory.
    pub fn mini_batch_line(&self) -> Option<String> {
        mini_batch_line(self.step_bytes, self.whole_step_bytes?)
    }

    /// Needs of a run that trains only the retriever.
    pub fn needs_alone(&self, config: &Config) -> Needs {
        let mut resident = self.needs.resident();
        resident.push(part(Cause::Program, "program", RETRIEVER_PROGRAM_BYTES));
        let memory = from_phases(&resident, self.needs.phases(0.0).into());
        let steps = memory.phases.iter().filter(|phase| phase.name == TRAINING);
        Needs {
            n_weights: 0,
            n_trained: self.parameters,
            quantization: Quantization::None,
            gathered_bytes: 0.0,
            step_bytes: steps.map(|phase| phase.bytes).max().unwrap_or(0),
            memory,
            checkpoint_bytes: self.checkpoint_bytes,
            disk_bytes: n_checkpoints(config) * self.checkpoint_bytes,
        }
    }
}

/// Inputs of the memory prediction.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RetrieverNeeds {
    pub(super) config: MiniLmConfig,
    /// The dtype of matrix-multiplication inputs.
    pub(super) compute_dtype: ComputeDtype,
    /// The largest set of texts that are differentiated at once.
    pub(super) texts: TextShape,
    /// Whether a step has more texts than `texts`. All texts are then first embedded without
    /// autodiff, and gradients are accumulated.
    pub(super) in_parts: bool,
    /// Total tokens of the distinct texts.
    pub(super) n_set_tokens: usize,
    /// Whether weight decay is on, which needs a mask of the matrices.
    pub(super) decays: bool,
}

impl RetrieverNeeds {
    pub(super) fn n_parameters(&self) -> usize {
        ParameterLayout::new(&self.config).len()
    }

    /// Bytes of the retriever in a checkpoint.
    pub(super) fn checkpoint_bytes(&self) -> u64 {
        checkpoint_bytes(self.n_parameters())
    }

    /// Parts that live for the whole run.
    pub(super) fn resident(&self) -> Vec<Part> {
        let mask = if self.decays { 1.0 } else { 0.0 };
        let values = (ADAPTER_COPIES + mask) * self.n_parameters() as f64;
        let texts = TOKENIZER_BYTES_PER_ENTRY * self.config.vocab_size as f64
            + EXAMPLE_BYTES_PER_TOKEN * self.n_set_tokens as f64;
        vec![
            part(Cause::Retriever, "retriever and its moments", F32 * values),
            part(
                Cause::Retriever,
                "tokenizer and texts of the retriever",
                texts,
            ),
        ]
    }

    /// Activation bytes of the texts that are differentiated at once.
    fn activation_bytes(&self) -> f64 {
        let MiniLmConfig {
            hidden_size: d,
            intermediate_size: inner,
            num_hidden_layers: n_blocks,
            ..
        } = self.config;
        let blocks = n_blocks as f64 * ENCODER.bytes_without_heads([d, inner], self.compute_dtype);
        let per_token = blocks + F32 * ENCODER_STREAMS * d as f64;
        let TextShape { n_texts, n_tokens } = self.texts;
        // Mean pooling is one matmul with a matrix of token weights.
        per_token * n_tokens as f64 + F32 * n_texts as f64 * n_tokens as f64
    }

    /// Temporary parts, including the `kept_bytes` that the language model's steps retain. The
    /// retriever reuses these buffers before it allocates others.
    fn temporary_parts(&self, kept_bytes: f64, name: &str, copies: f64) -> Vec<Part> {
        let packed = compute_bytes(self.compute_dtype) * n_matrix_values(&self.config) as f64;
        let activations = self.activation_bytes();
        let copies = copies * F32 * self.n_parameters() as f64;
        let matrices = (1.0 + self.mini_batch_bytes()) * packed;
        let remaining = kept_bytes - activations - copies - matrices;
        vec![
            part(Cause::Retriever, "activations of the texts", activations),
            part(
                Cause::Batch,
                "buffers of the language model's steps",
                remaining.max(0.0),
            ),
            part(Cause::Retriever, name, copies),
            part(Cause::Retriever, "packed retriever matrices", matrices),
        ]
    }

    fn mini_batch_bytes(&self) -> f64 {
        if self.in_parts { 1.0 } else { 0.0 }
    }

    /// Temporary parts of a step.
    fn step(&self, kept_bytes: f64) -> Vec<Part> {
        let copies = RETRIEVER_COPIES + self.mini_batch_bytes();
        self.temporary_parts(kept_bytes, "gradient and update of the retriever", copies)
    }

    /// Phases of the retriever, if the language model's steps retain `kept_bytes`.
    pub(super) fn phases(&self, kept_bytes: f64) -> [(&'static str, Vec<Part>); 2] {
        let name = "copies of the retriever being written to disk";
        let copies = RETRIEVER_SAVE_COPIES * F32 * self.n_parameters() as f64;
        let saving = vec![part(Cause::Retriever, name, copies)];
        [
            (TRAINING, self.step(kept_bytes)),
            ("saving the retriever", saving),
        ]
    }
}

/// Number of values in an encoder's matrices, which are packed for matmuls.
pub(super) fn n_matrix_values(config: &MiniLmConfig) -> usize {
    let (d, inner) = (config.hidden_size, config.intermediate_size);
    config.num_hidden_layers * (4 * d * d + 2 * d * inner)
}

/// Simulates the first `MAX_SIMULATED_STEPS` steps of a retriever exactly as training runs them.
pub fn plan_retriever(
    training: &RetrieverConfig,
    preparation: &RetrieverPreparation,
    compute_dtype: ComputeDtype,
) -> RetrieverPlan {
    let set = &preparation.set;
    let longest = longest_documents(preparation);
    let mut largest_step_tokens = 0;
    let mut texts = TextShape::default();
    let mut largest = TextShape::default();
    let mut in_parts = false;
    let mut cursor = Cursor {
        epoch: 0,
        step_in_epoch: 0,
    };
    for _ in 0..preparation.total_steps.min(MAX_SIMULATED_STEPS) {
        let (rows, next) = preparation.order.next(cursor);
        cursor = next;
        let batch = PairBatch::new(set, &rows, &[]);
        let sentences = preparation.sentences(&batch);
        let n_others = set.documents().len() - batch.documents.len();
        let n_mined = (training.hard_negatives * batch.rows.len()).min(n_others);
        let all = sentences.queries.iter().chain(&sentences.documents);
        let mut lengths: Vec<usize> = all.map(|sentence| sentence.ids.len()).collect();
        lengths.extend(longest.iter().take(n_mined));
        largest_step_tokens = largest_step_tokens.max(lengths.iter().sum());
        let max_texts = training.mini_batch_size.unwrap_or(usize::MAX);
        in_parts |= max_texts < lengths.len();
        largest = largest.larger(&lengths);
        for part in lengths.chunks(max_texts.min(lengths.len())) {
            texts = texts.larger(part);
        }
    }
    let needs = RetrieverNeeds {
        config: preparation.files.config.clone(),
        compute_dtype,
        texts,
        in_parts,
        n_set_tokens: preparation.n_tokens(),
        decays: training.weight_decay > 0.0,
    };
    let sum = |parts: Vec<Part>| parts.iter().map(|part| part.bytes).sum();
    let at_once = RetrieverNeeds {
        texts: largest,
        in_parts: false,
        ..needs.clone()
    };
    RetrieverPlan {
        pairs: set.pairs().len(),
        queries: set.queries().len(),
        documents: set.documents().len(),
        steps: preparation.total_steps,
        largest_step_tokens,
        parameters: needs.n_parameters(),
        resident_bytes: sum(needs.resident()),
        step_bytes: sum(needs.step(0.0)),
        whole_step_bytes: in_parts.then(|| sum(at_once.step(0.0))),
        checkpoint_bytes: needs.checkpoint_bytes(),
        cut: preparation.cut.clone(),
        joined_batches: preparation.order.n_joined(0),
        needs,
    }
}

/// Token counts of the longest documents, longest first. Which documents are mined is unknown
/// before training, so the longest are assumed.
fn longest_documents(preparation: &RetrieverPreparation) -> Vec<usize> {
    let mut lengths: Vec<usize> = preparation.document_lengths().collect();
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    lengths
}

/// A remark if mini-batches save hardly any memory.
fn mini_batch_line(step_bytes: u64, whole_step_bytes: u64) -> Option<String> {
    let saves_memory = step_bytes as f64 <= (1.0 - MIN_SAVED_SHARE) * whole_step_bytes as f64;
    (!saves_memory).then(|| {
        format!(
            "retriever.mini_batch_size saves no memory: a step uses {} with it and {} with all its texts \
             at once, because the gradient and update of all parameters are larger; remove it to \
             train faster",
            size(step_bytes),
            size(whole_step_bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mini_batches_that_save_no_memory_are_reported() {
        let line = mini_batch_line(300 << 20, 310 << 20).unwrap();
        for part in [
            "retriever.mini_batch_size saves no memory",
            "300 MiB",
            "310 MiB",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(mini_batch_line(400 << 20, 300 << 20).is_some());
        assert_eq!(mini_batch_line(300 << 20, 600 << 20), None);
    }
}
