//! The loss with all logits at once, differentiable by autodiff.

use burn::tensor::{Int, Tensor, TensorData, activation};

use super::Supervision;

/// Weighted sum of negative log-likelihoods, `[1]`, of the supervised rows of `hidden`.
///
/// # Shapes
///
/// - `hidden`: `[m, d]`, `head`: `[v, d]`
pub fn linear_cross_entropy(
    hidden: Tensor<2>,
    head: &Tensor<2>,
    supervision: &Supervision,
) -> Tensor<1> {
    let device = hidden.device();
    let m = supervision.targets.len();
    let targets: Vec<i32> = supervision.targets.iter().map(|&id| id as i32).collect();
    let targets: Tensor<2, Int> = Tensor::from_data(TensorData::new(targets, [m, 1]), &device);
    let weights = TensorData::new(supervision.weights.clone(), [m, 1]);
    let weights = Tensor::<2>::from_data(weights, &device).cast(hidden.dtype());
    let logits = hidden.matmul(head.clone().transpose());
    activation::log_softmax(logits, 1)
        .gather(1, targets)
        .mul(weights)
        .sum()
        .neg()
}
