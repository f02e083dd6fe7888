//! The loss of held-out examples.

use burn::tensor::Device;
use tooltune_kernels::linear_cross_entropy::linear_cross_entropy_loss;
use tooltune_kernels::{Supervision, is_cpu};
use tooltune_rows::batches::{Example, Padding, collate};
use tooltune_rows::text::TokenizedExample;

use super::served::OtherProcesses;
use crate::error::Error;
use crate::models::kv_cache::PREFILL_TOKENS;
use crate::models::{BatchContext, Decoder};
use tooltune_terminal::{GenerationProgress, Work};

/// Loss of an example.
#[derive(Debug, Clone, PartialEq)]
pub struct ExampleLoss {
    /// Weighted sum of the negative log-likelihoods of the tokens, in nats.
    pub sum: f64,
    /// Sum of the token weights.
    pub weight: f64,
}

/// Weighted mean of the negative log-likelihood over all examples, in nats.
///
/// The processes of `served` compute a share. `watch` is called after each example; if it returns
/// `false`, the work stops.
///
/// # Errors
///
/// An example has no tokens or invalid weights, or a process was lost.
pub fn mean_loss(
    decoder: &Decoder,
    examples: &[TokenizedExample],
    served: Option<&dyn OtherProcesses>,
    watch: &mut dyn FnMut(GenerationProgress) -> bool,
) -> Result<Option<f64>, Error> {
    Ok(losses(decoder, examples, served, watch)?.map(|losses| mean(&losses)))
}

/// Weighted mean over examples.
pub fn mean(losses: &[ExampleLoss]) -> f64 {
    let sum = losses.iter().fold(0.0, |sum, loss| sum + loss.sum);
    let weight = losses.iter().fold(0.0, |sum, loss| sum + loss.weight);
    sum / weight
}

/// The loss of each example; `None` if `watch` stopped the work.
///
/// # Errors
///
/// As for [`mean_loss`].
pub fn losses(
    decoder: &Decoder,
    examples: &[TokenizedExample],
    served: Option<&dyn OtherProcesses>,
    watch: &mut dyn FnMut(GenerationProgress) -> bool,
) -> Result<Option<Vec<ExampleLoss>>, Error> {
    let decoder = &decoder.with_combined_adapters();
    let passes: Vec<_> = group_for_passes(examples, &decoder.device()).collect();
    if let Some(served) = served {
        return served.losses(decoder, &passes, watch);
    }
    let mut losses = Vec::with_capacity(examples.len());
    for group in passes {
        for loss in pass_losses(decoder, group)? {
            losses.push(loss);
            let progress = GenerationProgress {
                work: Work::MeasuringLoss,
                n_done: losses.len(),
                n_total: examples.len(),
                n_tokens: 0,
                waiting: None,
            };
            if !watch(progress) {
                return Ok(None);
            }
        }
    }
    Ok(Some(losses))
}

/// Groups examples into forward passes: one example per pass on a CPU, and up to [`PREFILL_TOKENS`]
/// tokens on a GPU, because short passes would not fill it.
fn group_for_passes<'a>(
    examples: &'a [TokenizedExample],
    device: &Device,
) -> impl Iterator<Item = &'a [TokenizedExample]> {
    let max_tokens = if is_cpu(device) { 0 } else { PREFILL_TOKENS };
    let mut remaining = examples;
    std::iter::from_fn(move || {
        let mut n_tokens = 0;
        let fits = remaining.iter().take_while(|example| {
            n_tokens += example.input_ids.len();
            n_tokens <= max_tokens
        });
        let n = fits.count().clamp(remaining.len().min(1), remaining.len());
        let (group, rest) = remaining.split_at(n);
        remaining = rest;
        (!group.is_empty()).then_some(group)
    })
}

/// The loss of each example of one forward pass. `decoder` has combined adapters.
///
/// # Errors
///
/// As for [`mean_loss`].
pub(super) fn pass_losses(
    decoder: &Decoder,
    examples: &[TokenizedExample],
) -> Result<Vec<ExampleLoss>, Error> {
    let examples: Vec<Example<'_>> = examples.iter().map(Example::from).collect();
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
    decoder.check_gathers()?;
    let mut first = 0;
    let loss = |border: &[usize]| {
        let example_range = border[0]..border[1];
        let part = Supervision::new(
            &batch.targets[example_range.clone()],
            &batch.loss_weights[example_range.clone()],
        );
        let n = part.rows.len();
        let own = hidden.clone().narrow(0, first, n);
        first += n;
        ExampleLoss {
            sum: match n {
                0 => 0.0,
                _ => linear_cross_entropy_loss(own, &decoder.lm_head, &part, 128),
            },
            weight: batch.loss_weights[example_range]
                .iter()
                .map(|&w| f64::from(w))
                .sum(),
        }
    };
    Ok(batch.cu_seqlens.windows(2).map(loss).collect())
}
