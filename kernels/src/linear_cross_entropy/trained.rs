//! The loss with a trained LM head: also computes the head's gradient.

use burn::tensor::{DType, Tensor};

use super::{Supervision, chunk_loss, scales_of};

/// Loss and gradients.
#[derive(Debug, Clone)]
pub struct TrainedHeadGradients {
    /// Weighted sum of the negative log-likelihoods, in nats.
    pub loss_sum: f64,
    /// Gradient of `loss_sum * gradient_scale` with respect to the hidden states, `[m, d]`.
    pub d_hidden: Tensor<2>,
    /// The same gradient with respect to the head, `[v, d]`, f32.
    pub d_head: Tensor<2>,
}

/// [`linear_cross_entropy`](super::linear_cross_entropy()) with a trained f32 head, in plain tensor
/// operations; products are f32 for any dtype of `hidden`.
///
/// # Shapes
///
/// - `hidden`: `[m, d]`, without autodiff
/// - `head`: `[v, d]`, f32, without autodiff
pub fn trained_cross_entropy(
    hidden: Tensor<2>,
    head: &Tensor<2>,
    supervision: &Supervision,
    gradient_scale: f64,
    chunk_rows: usize,
) -> TrainedHeadGradients {
    crate::operation!("linear_cross_entropy");
    let (m, dtype) = (hidden.dims()[0], hidden.dtype());
    let hidden = hidden.cast(DType::F32);
    let mut loss_sum = 0.0;
    let mut d_hidden = Vec::with_capacity(m.div_ceil(chunk_rows));
    let mut d_head: Option<Tensor<2>> = None;
    for start in (0..m).step_by(chunk_rows) {
        let end = (start + chunk_rows).min(m);
        let part = supervision.part(start..end);
        let rows = hidden.clone().narrow(0, start, end - start);
        let (loss, log_probabilities, targets) = chunk_loss(rows.clone(), head, &part);
        loss_sum += loss;
        let scales = scales_of(&part, gradient_scale, &rows.device());
        let d_logits = log_probabilities.exp().mul(scales.clone());
        let add = burn::tensor::IndexingUpdateOp::Add;
        let d_logits = d_logits.scatter(1, targets, scales.neg(), add);
        d_hidden.push(d_logits.clone().matmul(head.clone()));
        let chunk_gradient = d_logits.transpose().matmul(rows);
        d_head = Some(match d_head {
            Some(sum) => sum.add(chunk_gradient),
            None => chunk_gradient,
        });
    }
    TrainedHeadGradients {
        loss_sum,
        d_hidden: Tensor::cat(d_hidden, 0).cast(dtype),
        d_head: d_head.unwrap_or_else(|| head.zeros_like()),
    }
}
