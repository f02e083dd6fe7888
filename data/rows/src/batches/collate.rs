//! Token ids and unshifted weights in, flat micro-batches with shifted targets out.
//!
//! The only shift of the project is [`shift_for_next_token`]; it runs once per document, before
//! documents are laid end to end, so no document ever predicts the first token of the next one.
//! The model, the loss and the trainer never shift again.

use std::num::NonZeroUsize;

use super::BatchError;

/// One tokenized document, as the text side hands it over.
#[derive(Debug, Clone, Copy)]
pub struct Example<'a> {
    /// The data set's name for it, used in errors.
    pub id: &'a str,
    /// Token ids, unshifted.
    pub input_ids: &'a [u32],
    /// `loss_weights[i]` is the weight of `input_ids[i]` as a target; 0 means not learned.
    pub loss_weights: &'a [f32],
}

/// What follows the last document of a micro-batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Padding {
    /// Nothing: the flat length is the number of real tokens.
    #[default]
    None,
    /// Tokens of id 0 and weight 0 that belong to no document, up to a multiple of this length.
    /// Devices that compile a kernel per shape then see few shapes.
    ToMultipleOf(NonZeroUsize),
}

/// Documents laid end to end: the unit of one forward and backward.
///
/// All token vectors have one length, padding included. `targets[t]` is predicted by the logits
/// at `t` and counts with `loss_weights[t]`; at the last token of a document both are 0.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MicroBatch {
    /// Token ids, unshifted.
    pub input_ids: Vec<u32>,
    /// Position in the own document, from 0; 0 in the padding.
    pub position_ids: Vec<u32>,
    /// The next token of the same document.
    pub targets: Vec<u32>,
    /// The weight of `targets`.
    pub loss_weights: Vec<f32>,
    /// Document `i` is `cu_seqlens[i]..cu_seqlens[i + 1]`; the first entry is 0 and the last is
    /// where padding begins.
    pub cu_seqlens: Vec<usize>,
    /// Ids of the documents, in order.
    pub example_ids: Vec<String>,
}

impl MicroBatch {
    /// Tokens that belong to a document, padding excluded.
    pub fn n_tokens(&self) -> usize {
        self.cu_seqlens.last().copied().unwrap_or(0)
    }

    /// Number of documents.
    pub fn n_documents(&self) -> usize {
        self.example_ids.len()
    }

    /// Sum of the weights after the shift; added in f64 so that the order of examples is unseen.
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

    /// Tokens of the longest document.
    pub fn max_document_len(&self) -> usize {
        self.cu_seqlens
            .windows(2)
            .map(|ends| ends[1] - ends[0])
            .max()
            .unwrap_or(0)
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
/// The loss of the step is the weighted sum over all of them, divided once by
/// [`StepBatch::sum_loss_weights`]; one micro-batch of eight equals eight of one.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepBatch {
    /// In the order in which they are run.
    pub micro_batches: Vec<MicroBatch>,
}

impl StepBatch {
    /// The loss's divisor; 0 if nothing in the step is learned.
    pub fn sum_loss_weights(&self) -> f64 {
        self.micro_batches
            .iter()
            .map(MicroBatch::sum_loss_weights)
            .sum()
    }

    /// Tokens of all documents, padding excluded.
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

/// Turns unshifted ids and weights into targets and their weights.
///
/// Position `t` gets id and weight of `t + 1`; the last position has nothing to predict and gets
/// target 0 with weight 0. The weight of the first token is lost: nothing predicts it.
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

/// Lays `examples` end to end, in the order given.
///
/// # Errors
///
/// - no example, or an example without tokens
/// - the weights of an example are not as many as its tokens
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
