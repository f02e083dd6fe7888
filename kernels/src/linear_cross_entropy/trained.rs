//! The loss with a head that is trained: its gradient beside that of the hidden states.

use burn::tensor::{DType, Tensor};

use super::{Supervision, chunk_loss, scales_of};

/// What a trained head gives back.
#[derive(Debug, Clone)]
pub struct TrainedHeadGradients {
    /// Weighted sum of the negative log-likelihoods, in nats.
    pub loss_sum: f64,
    /// Gradient of `loss_sum * gradient_scale` for the hidden states, `[m, d]`.
    pub d_hidden: Tensor<2>,
    /// The same for the head, `[v, d]`, f32.
    pub d_head: Tensor<2>,
}

/// [`linear_cross_entropy`](super::linear_cross_entropy()) with a head in f32 that learns, in plain
/// tensor operations; products are of f32 whatever the type of `hidden`.
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
        let of_chunk = d_logits.transpose().matmul(rows);
        d_head = Some(match d_head {
            Some(sum) => sum.add(of_chunk),
            None => of_chunk,
        });
    }
    TrainedHeadGradients {
        loss_sum,
        d_hidden: Tensor::cat(d_hidden, 0).cast(dtype),
        d_head: d_head.unwrap_or_else(|| head.zeros_like()),
    }
}
