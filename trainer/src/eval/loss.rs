//! Held-out examples to their mean loss, without a gradient.

use tooltune_kernels::Supervision;
use tooltune_kernels::linear_cross_entropy::linear_cross_entropy_loss;
use tooltune_rows::batches::{Example, Padding, collate};
use tooltune_rows::text::TokenizedExample;

use crate::error::Error;
use crate::models::{BatchContext, Decoder};

/// The loss of an example.
#[derive(Debug, Clone, PartialEq)]
pub struct ExampleLoss {
    /// The weighted sum of the negative log-likelihoods of its tokens, in nats.
    pub sum: f64,
    /// The sum of their weights.
    pub weight: f64,
}

/// Weighted mean of the negative log-likelihood over all examples, in nats.
///
/// `watch` is called after each example and may end the work by returning `false`.
///
/// # Errors
///
/// An example without tokens or with unusable weights.
pub fn mean_loss(
    decoder: &Decoder,
    examples: &[TokenizedExample],
    watch: &mut dyn FnMut(usize) -> bool,
) -> Result<Option<f64>, Error> {
    Ok(losses(decoder, examples, watch)?.map(|losses| mean(&losses)))
}

/// The weighted mean of all.
pub fn mean(losses: &[ExampleLoss]) -> f64 {
    let sum = losses.iter().fold(0.0, |sum, loss| sum + loss.sum);
    let weight = losses.iter().fold(0.0, |sum, loss| sum + loss.weight);
    sum / weight
}

/// The loss of each example; `None` where `watch` ended the work.
///
/// # Errors
///
/// As [`mean_loss`].
pub fn losses(
    decoder: &Decoder,
    examples: &[TokenizedExample],
    watch: &mut dyn FnMut(usize) -> bool,
) -> Result<Option<Vec<ExampleLoss>>, Error> {
    let mut losses = Vec::with_capacity(examples.len());
    for (i, example) in examples.iter().enumerate() {
        let example = Example {
            id: &example.id,
            input_ids: &example.input_ids,
            loss_weights: &example.loss_weights,
        };
        let batch = collate(&[example], Padding::None)?;
        let context = BatchContext::new(decoder, &batch.position_ids, &batch.cu_seqlens);
        let supervision = Supervision::new(&batch.targets, &batch.loss_weights);
        let mut loss = ExampleLoss {
            sum: 0.0,
            weight: 0.0,
        };
        if !supervision.rows.is_empty() {
            let rows = supervision.row_numbers();
            let hidden = decoder.forward_rows(&batch.input_ids, &context, &rows);
            loss.sum = linear_cross_entropy_loss(hidden, &decoder.lm_head, &supervision, 128);
            loss.weight = batch.sum_loss_weights();
        }
        losses.push(loss);
        if !watch(i + 1) {
            return Ok(None);
        }
    }
    Ok(Some(losses))
}
