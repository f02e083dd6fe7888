//! Predicts what the steps of a retriever take: pairs, tokens, memory.
//!
//! Unlike a language model's, all of its parameters are trained, so that gradient and moments weigh
//! as much as the activations of a small batch.

use serde::Serialize;
use tooltune_agents::pairs::PairBatch;
use tooltune_kernels::ComputeDtype;
use tooltune_rows::batches::Cursor;

use super::advice::Cause;
use super::measured::{
    ADAPTER_COPIES, ENCODER, ENCODER_STREAMS, EXAMPLE_BYTES_PER_TOKEN, RETRIEVER_COPIES,
    RETRIEVER_PROGRAM_BYTES, RETRIEVER_SAVE_COPIES, TOKENIZER_BYTES_PER_ENTRY,
};
use super::memory::{Part, of_phases, part};
use super::workload::MOST_WALKED;
use super::{Needs, checkpoint_bytes, n_checkpoints};
use crate::config::{Config, RetrieverConfig};
use crate::encoder::cut_texts::CutTexts;
use crate::models::minilm::{MiniLmConfig, ParameterLayout};
use crate::recipes::kept_blocks::{F32, compute_bytes};
use crate::recipes::retriever::RetrieverPreparation;

/// The phase in which a retriever learns.
const LEARNING: &str = "retriever step";

/// Texts that are under autodiff together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TextShape {
    /// How many there are.
    pub n_texts: usize,
    /// Tokens of all of them.
    pub n_tokens: usize,
}

/// What a retriever reads, learns and needs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RetrieverPlan {
    /// Pairs to learn from.
    pub pairs: usize,
    /// Distinct queries.
    pub queries: usize,
    /// Distinct documents.
    pub documents: usize,
    /// Optimizer steps.
    pub steps: u64,
    /// Tokens of the step with the most; mined documents count as the longest.
    pub largest_step_tokens: usize,
    /// Parameters, all trained.
    pub parameters: usize,
    /// Bytes that live from the first step to the last.
    pub resident_bytes: u64,
    /// Bytes that a step takes besides, at most.
    pub step_bytes: u64,
    /// Bytes of its part of a checkpoint.
    pub checkpoint_bytes: u64,
    /// Texts that are longer than the encoder reads, and those that it reads alike.
    pub cut: CutTexts,
    /// Batches of the first epoch that have no wrong document and join others.
    pub joined_batches: usize,
    #[serde(skip)]
    pub(super) needs: RetrieverNeeds,
}

impl RetrieverPlan {
    /// What its run needs without a language model.
    pub fn needs_alone(&self, config: &Config) -> Needs {
        let mut resident = self.needs.resident();
        resident.push(part(Cause::Program, "program", RETRIEVER_PROGRAM_BYTES));
        let memory = of_phases(&resident, self.needs.phases(0.0).into());
        let steps = memory.phases.iter().filter(|phase| phase.name == LEARNING);
        Needs {
            n_weights: 0,
            n_trained: self.parameters,
            step_bytes: steps.map(|phase| phase.bytes).max().unwrap_or(0),
            memory,
            checkpoint_bytes: self.checkpoint_bytes,
            disk_bytes: n_checkpoints(config) * self.checkpoint_bytes,
        }
    }
}

/// What the memory of a retriever follows from.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RetrieverNeeds {
    pub(super) config: MiniLmConfig,
    /// The dtype of matrix products.
    pub(super) compute_dtype: ComputeDtype,
    /// The texts under autodiff together that take the most.
    pub(super) texts: TextShape,
    /// Whether a step has more texts than those: then gradients are added, and all texts are
    /// embedded without autodiff first.
    pub(super) in_parts: bool,
    /// Tokens of all distinct texts.
    pub(super) n_set_tokens: usize,
    /// Whether weights decay, which takes a mask of the matrices.
    pub(super) decays: bool,
}

impl RetrieverNeeds {
    pub(super) fn n_parameters(&self) -> usize {
        ParameterLayout::new(&self.config).len()
    }

    /// Bytes of its part of a checkpoint.
    pub(super) fn checkpoint_bytes(&self) -> u64 {
        checkpoint_bytes(self.n_parameters())
    }

    /// What lives from the first step to the last.
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

    /// What the texts under autodiff together take.
    fn activation_bytes(&self) -> f64 {
        let MiniLmConfig {
            hidden_size: d,
            intermediate_size: inner,
            num_hidden_layers: n_blocks,
            ..
        } = self.config;
        let blocks = n_blocks as f64 * ENCODER.bytes_beside_heads([d, inner], self.compute_dtype);
        let per_token = blocks + F32 * ENCODER_STREAMS * d as f64;
        let TextShape { n_texts, n_tokens } = self.texts;
        // The means of the texts are one product with a matrix of their shares.
        per_token * n_tokens as f64 + F32 * n_texts as f64 * n_tokens as f64
    }

    /// What a step takes besides where steps of a language model took `kept_bytes`: their pages stay
    /// for the next one, and the retriever has them before it takes others.
    fn beside(&self, kept_bytes: f64, name: &str, copies: f64) -> Vec<Part> {
        let packed = compute_bytes(self.compute_dtype) * n_matrix_values(&self.config) as f64;
        let activations = self.activation_bytes();
        let copies = copies * F32 * self.n_parameters() as f64;
        let matrices = (1.0 + self.of_parts()) * packed;
        let left = kept_bytes - activations - copies - matrices;
        vec![
            part(Cause::Retriever, "activations of the texts", activations),
            part(Cause::Batch, "kept from the model's steps", left.max(0.0)),
            part(Cause::Retriever, name, copies),
            part(Cause::Retriever, "matrices as products read them", matrices),
        ]
    }

    fn of_parts(&self) -> f64 {
        if self.in_parts { 1.0 } else { 0.0 }
    }

    /// What a step takes besides.
    fn step(&self, kept_bytes: f64) -> Vec<Part> {
        let copies = RETRIEVER_COPIES + self.of_parts();
        self.beside(kept_bytes, "gradient and update of the retriever", copies)
    }

    /// Its phases, where steps of a language model take `kept_bytes`.
    pub(super) fn phases(&self, kept_bytes: f64) -> [(&'static str, Vec<Part>); 2] {
        let name = "copies of the retriever on their way to the disk";
        let copies = RETRIEVER_SAVE_COPIES * F32 * self.n_parameters() as f64;
        let saving = vec![part(Cause::Retriever, name, copies)];
        [
            (LEARNING, self.step(kept_bytes)),
            ("saving the retriever", saving),
        ]
    }
}

/// Values of an encoder's matrices, which products read packed.
pub(super) fn n_matrix_values(config: &MiniLmConfig) -> usize {
    let (d, inner) = (config.hidden_size, config.intermediate_size);
    config.num_hidden_layers * (4 * d * d + 2 * d * inner)
}

/// Walks the steps of a retriever as training will, the first `MOST_WALKED`.
pub fn plan_retriever(
    training: &RetrieverConfig,
    preparation: &RetrieverPreparation,
    compute_dtype: ComputeDtype,
) -> RetrieverPlan {
    let set = &preparation.set;
    let longest = longest_documents(preparation);
    let mut largest_step_tokens = 0;
    let mut texts = TextShape::default();
    let mut in_parts = false;
    let mut cursor = Cursor {
        epoch: 0,
        step_in_epoch: 0,
    };
    for _ in 0..preparation.total_steps.min(MOST_WALKED) {
        let (rows, next) = preparation.order.next(cursor);
        cursor = next;
        let batch = PairBatch::new(set, &rows, &[]);
        let sentences = preparation.sentences(&batch);
        let n_others = set.documents().len() - batch.documents.len();
        let n_mined = (training.hard_negatives * batch.rows.len()).min(n_others);
        let given = sentences.queries.iter().chain(&sentences.documents);
        let mut lengths: Vec<usize> = given.map(|sentence| sentence.ids.len()).collect();
        lengths.extend(longest.iter().take(n_mined));
        largest_step_tokens = largest_step_tokens.max(lengths.iter().sum());
        let together = training.mini_batch_size.unwrap_or(usize::MAX);
        in_parts |= together < lengths.len();
        for part in lengths.chunks(together.min(lengths.len())) {
            let n_tokens = part.iter().sum();
            if n_tokens > texts.n_tokens {
                let n_texts = part.len();
                texts = TextShape { n_texts, n_tokens };
            }
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
    RetrieverPlan {
        pairs: set.pairs().len(),
        queries: set.queries().len(),
        documents: set.documents().len(),
        steps: preparation.total_steps,
        largest_step_tokens,
        parameters: needs.n_parameters(),
        resident_bytes: sum(needs.resident()),
        step_bytes: sum(needs.step(0.0)),
        checkpoint_bytes: needs.checkpoint_bytes(),
        cut: preparation.cut.clone(),
        joined_batches: preparation.order.n_joined(0),
        needs,
    }
}

/// Tokens of the documents that mining could add to a step, longest first: which it finds is not
/// known before training.
fn longest_documents(preparation: &RetrieverPreparation) -> Vec<usize> {
    let mut lengths: Vec<usize> = preparation.document_lengths().collect();
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    lengths
}
