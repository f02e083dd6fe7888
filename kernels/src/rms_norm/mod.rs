//! Hidden states to hidden states of unit root mean square, scaled by a learned weight.

pub mod reference;

use burn::tensor::Tensor;

/// Divides each row by its root mean square and multiplies by `weight`.
///
/// # Shapes
///
/// - `x`: `[n, d]`, float
/// - `weight`: `[d]`, same dtype
/// - returns: `[n, d]`
///
/// # Source
///
/// Zhang and Sennrich 2019, equation 4; `LlamaRMSNorm` of transformers 5.23.
pub fn rms_norm(x: Tensor<2>, weight: &Tensor<1>, eps: f64) -> Tensor<2> {
    reference::rms_norm(x, weight, eps)
}
