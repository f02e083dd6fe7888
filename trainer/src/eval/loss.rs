//! Held-out examples to their mean loss, without a gradient.

use burn::tensor::Device;
use tooltune_kernels::linear_cross_entropy::linear_cross_entropy_loss;
use tooltune_kernels::{Supervision, is_cpu};
use tooltune_rows::batches::{BatchError, Example, Padding, collate};
use tooltune_rows::text::TokenizedExample;

use crate::error::Error;
use crate::models::kv_cache::PREFILL_TOKENS;
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
    let decoder = &decoder.joined();
    let mut losses = Vec::with_capacity(examples.len());
    for together in read_together(examples, &decoder.device()) {
        for loss in losses_of(decoder, together)? {
            losses.push(loss);
            if !watch(losses.len()) {
                return Ok(None);
            }
        }
    }
    Ok(Some(losses))
}

/// Examples that are read in one pass: on a GPU, which a short one would leave idle, as many as prompts are;
/// on the CPU one.
fn read_together<'a>(
    examples: &'a [TokenizedExample],
    device: &Device,
) -> impl Iterator<Item = &'a [TokenizedExample]> {
    let most = if is_cpu(device) { 0 } else { PREFILL_TOKENS };
    let mut left = examples;
    std::iter::from_fn(move || {
        let mut n_tokens = 0;
        let fits = left.iter().take_while(|example| {
            n_tokens += example.input_ids.len();
            n_tokens <= most
        });
        let n = fits.count().clamp(left.len().min(1), left.len());
        let (together, rest) = left.split_at(n);
        left = rest;
        (!together.is_empty()).then_some(together)
    })
}

/// The loss of each of some examples, which one pass reads.
fn losses_of(
    decoder: &Decoder,
    examples: &[TokenizedExample],
) -> Result<Vec<ExampleLoss>, BatchError> {
    let examples: Vec<Example<'_>> = examples
        .iter()
        .map(|example| Example {
            id: &example.id,
            input_ids: &example.input_ids,
            loss_weights: &example.loss_weights,
        })
        .collect();
    let batch = collate(&examples, Padding::None)?;
    let supervision = Supervision::new(&batch.targets, &batch.loss_weights);
    if supervision.rows.is_empty() {
        let nothing = ExampleLoss {
            sum: 0.0,
            weight: 0.0,
        };
        return Ok(vec![nothing; examples.len()]);
    }
    let context = BatchContext::new(decoder, &batch.position_ids, &batch.cu_seqlens);
    let rows = supervision.row_numbers();
    let hidden = decoder.forward_rows(&batch.input_ids, &context, &rows);
    let mut first = 0;
    let loss = |border: &[usize]| {
        let of_example = border[0]..border[1];
        let part = Supervision::new(
            &batch.targets[of_example.clone()],
            &batch.loss_weights[of_example.clone()],
        );
        let n = part.rows.len();
        let own = hidden.clone().narrow(0, first, n);
        first += n;
        ExampleLoss {
            sum: match n {
                0 => 0.0,
                _ => linear_cross_entropy_loss(own, &decoder.lm_head, &part, 128),
            },
            weight: batch.loss_weights[of_example]
                .iter()
                .map(|&w| f64::from(w))
                .sum(),
        }
    };
    Ok(batch.cu_seqlens.windows(2).map(loss).collect())
}
