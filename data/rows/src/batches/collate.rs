//! Collates documents into flat micro-batches with shifted targets.
//!
//! [`shift_for_next_token`] is the only shift in the project. It runs once per document before
//! documents are concatenated, so no document predicts the first token of the next one. The model,
//! the loss and the trainer never shift again.

use std::num::NonZeroUsize;

use super::BatchError;
use crate::text::TokenizedExample;

/// One tokenized document.
#[derive(Debug, Clone, Copy)]
pub struct Example<'a> {
    /// Id of the document in the data set, used in errors.
    pub id: &'a str,
    /// Token ids, unshifted.
    pub input_ids: &'a [u32],
    /// `loss_weights[i]` is the weight of `input_ids[i]` as a target; 0 excludes it from the loss.
    pub loss_weights: &'a [f32],
}

impl<'a> From<&'a TokenizedExample> for Example<'a> {
    fn from(example: &'a TokenizedExample) -> Self {
        Self {
            id: &example.id,
            input_ids: &example.input_ids,
            loss_weights: &example.loss_weights,
        }
    }
}

/// Padding after the last document of a micro-batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Padding {
    /// No padding: the flat length is the number of document tokens.
    #[default]
    None,
    /// Pads to a multiple of this length with tokens of id 0 and weight 0, which belong to no
    /// document. Devices that compile a kernel per shape then see few shapes.
    ToMultipleOf(NonZeroUsize),
}

/// Concatenated documents: the unit of one forward and backward pass.
///
/// All token vectors have the same length, padding included. The logits at `t` predict `targets[t]`
/// with weight `loss_weights[t]`. The last token of a document has target 0 and weight 0.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MicroBatch {
    /// Token ids, unshifted.
    pub input_ids: Vec<u32>,
    /// Position in the document, from 0; 0 in the padding.
    pub position_ids: Vec<u32>,
    /// Next token of the same document.
    pub targets: Vec<u32>,
    /// Weight of each target.
    pub loss_weights: Vec<f32>,
    /// Document `i` is `cu_seqlens[i]..cu_seqlens[i + 1]`; the first entry is 0 and the last is the
    /// start of the padding.
    pub cu_seqlens: Vec<usize>,
    /// Document ids, in order.
    pub example_ids: Vec<String>,
}

impl MicroBatch {
    /// Number of document tokens, without padding.
    pub fn n_tokens(&self) -> usize {
        self.cu_seqlens.last().copied().unwrap_or(0)
    }

    /// Number of tokens of each document, in order.
    pub fn document_lengths(&self) -> impl Iterator<Item = usize> + '_ {
        let documents = self.cu_seqlens.windows(2);
        documents.map(|ends| ends[1].abs_diff(ends[0]))
    }

    /// Number of documents.
    pub fn n_documents(&self) -> usize {
        self.example_ids.len()
    }

    /// Sum of the shifted weights, added in f64 so that the order of examples has no effect.
    pub fn sum_loss_weights(&self) -> f64 {
        self.loss_weights.iter().copied().map(f64::from).sum()
    }

    /// Positions whose target has a weight above 0.
    pub fn n_trained_tokens(&self) -> usize {
        self.loss_weights
            .iter()
            .filter(|weight| **weight > 0.0)
            .count()
    }

    fn push(&mut self, example: &Example) {
        let (targets, weights) = shift_for_next_token(example.input_ids, example.loss_weights);
        self.input_ids.extend_from_slice(example.input_ids);
        self.position_ids.extend(0..example.input_ids.len() as u32);
        self.targets.extend(targets);
        self.loss_weights.extend(weights);
        self.cu_seqlens.push(self.input_ids.len());
        self.example_ids.push(example.id.to_owned());
    }

    fn pad_to(&mut self, n: usize) {
        self.input_ids.resize(n, 0);
        self.position_ids.resize(n, 0);
        self.targets.resize(n, 0);
        self.loss_weights.resize(n, 0.0);
    }
}

/// The micro-batches of one optimizer step.
///
/// The step's loss is the weighted sum over all micro-batches, divided once by
/// [`StepBatch::sum_loss_weights`]. One micro-batch of eight examples therefore has the same loss
/// as eight micro-batches of one example.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepBatch {
    /// Micro-batches in execution order.
    pub micro_batches: Vec<MicroBatch>,
}

impl StepBatch {
    /// Divisor of the loss; 0 if no token of the step is supervised.
    pub fn sum_loss_weights(&self) -> f64 {
        self.micro_batches
            .iter()
            .map(MicroBatch::sum_loss_weights)
            .sum()
    }

    /// Tokens of all documents, without padding.
    pub fn n_tokens(&self) -> usize {
        self.micro_batches.iter().map(MicroBatch::n_tokens).sum()
    }

    /// Positions whose target has a weight above 0.
    pub fn n_trained_tokens(&self) -> usize {
        self.micro_batches
            .iter()
            .map(MicroBatch::n_trained_tokens)
            .sum()
    }
}

/// Converts ids and weights to targets and target weights, shifted by one.
///
/// Position `t` gets the id and weight of `t + 1`. The last position gets target 0 with weight 0.
/// The weight of the first token is dropped, because nothing predicts it.
///
/// # Panics
///
/// If the two lengths differ.
pub fn shift_for_next_token(input_ids: &[u32], loss_weights: &[f32]) -> (Vec<u32>, Vec<f32>) {
    assert_eq!(input_ids.len(), loss_weights.len(), "one weight per token");
    let next_ids = input_ids.iter().skip(1).copied();
    let next_weights = loss_weights.iter().skip(1).copied();
    let end = usize::from(!input_ids.is_empty());
    (
        next_ids.chain(std::iter::repeat_n(0, end)).collect(),
        next_weights.chain(std::iter::repeat_n(0.0, end)).collect(),
    )
}

/// Concatenates `examples` in the given order.
///
/// # Errors
///
/// - there are no examples, or an example has no tokens
/// - the numbers of weights and tokens of an example differ
/// - a weight is negative, infinite or not a number
pub fn collate(examples: &[Example], padding: Padding) -> Result<MicroBatch, BatchError> {
    if examples.is_empty() {
        return Err(BatchError::NoExamples);
    }
    examples.iter().try_for_each(check)?;
    let mut batch = MicroBatch {
        cu_seqlens: vec![0],
        ..MicroBatch::default()
    };
    for example in examples {
        batch.push(example);
    }
    if let Padding::ToMultipleOf(multiple) = padding {
        batch.pad_to(batch.n_tokens().next_multiple_of(multiple.get()));
    }
    Ok(batch)
}

fn check(example: &Example) -> Result<(), BatchError> {
    let id = || example.id.to_owned();
    let (n_tokens, n_weights) = (example.input_ids.len(), example.loss_weights.len());
    if n_tokens == 0 {
        return Err(BatchError::EmptyExample { id: id() });
    }
    if n_tokens != n_weights {
        return Err(BatchError::WeightCount {
            id: id(),
            n_tokens,
            n_weights,
        });
    }
    let bad = |weight: &f32| !weight.is_finite() || *weight < 0.0;
    match example.loss_weights.iter().position(bad) {
        Some(token_idx) => {
            let weight = example.loss_weights[token_idx];
            Err(BatchError::Weight {
                id: id(),
                token_idx,
                weight,
            })
        }
        None => Ok(()),
    }
}
