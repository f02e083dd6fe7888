//! Hidden states to hidden states of unit root mean square, scaled by a learned weight.

pub(crate) mod cpu;
#[cfg(feature = "cube")]
pub mod cuda;
pub mod reference;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use crate::ops::{KernelOps, is_fused};

/// Divides each row by its root mean square and multiplies by `weight`, which is frozen.
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
    if !(is_fused(&x) && is_fused(weight)) {
        return reference::rms_norm(x, weight, eps);
    }
    let weight = weight.clone().into_dispatch();
    Tensor::from_dispatch(Dispatch::frozen_rms_norm(
        x.into_dispatch(),
        weight,
        eps as f32,
    ))
}
