//! Held-out examples to their mean loss, without a gradient.

use tooltune_kernels::Supervision;
use tooltune_kernels::linear_cross_entropy::linear_cross_entropy_loss;
use tooltune_rows::batches::{Example, Padding, collate};
use tooltune_rows::text::TokenizedExample;

use crate::error::Error;
use crate::models::{BatchContext, Decoder};

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
    let (mut loss_sum, mut sum_weights) = (0.0, 0.0);
    for (i, example) in examples.iter().enumerate() {
        let example = Example {
            id: &example.id,
            input_ids: &example.input_ids,
            loss_weights: &example.loss_weights,
        };
        let batch = collate(&[example], Padding::None)?;
        let context = BatchContext::new(decoder, &batch.position_ids, &batch.cu_seqlens);
        let supervision = Supervision::new(&batch.targets, &batch.loss_weights);
        if !supervision.rows.is_empty() {
            let rows = supervision.row_indices(&decoder.device());
            let hidden = decoder.forward_rows(&batch.input_ids, &context, rows);
            loss_sum += linear_cross_entropy_loss(hidden, &decoder.lm_head, &supervision, 128);
            sum_weights += batch.sum_loss_weights();
        }
        if !watch(i + 1) {
            return Ok(None);
        }
    }
    Ok(Some(loss_sum / sum_weights))
}
