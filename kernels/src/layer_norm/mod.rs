//! Normalises hidden states to mean 0 and variance 1, with trained scale and shift.

mod backend;
mod cpu;
pub mod reference;

use burn::backend::Dispatch;
use burn::tensor::{DType, Tensor};

use crate::route::is_served_by_cpu;
use backend::LayerNormOps;

/// `(x - mean) / √(variance + eps) * weight + bias` for each row; `x`, `weight` and `bias` are
/// differentiable.
///
/// # Shapes
///
/// - `x`: `[n, d]`, f32
/// - `weight`, `bias`: `[d]`, f32
/// - returns: `[n, d]`, f32
///
/// # Panics
///
/// If the number of weights or biases differs from the number of columns.
///
/// # Source
///
/// Ba et al. 2016, equation 4; `torch.nn.LayerNorm`, whose variance divides by `d`.
pub fn layer_norm(x: Tensor<2>, weight: &Tensor<1>, bias: &Tensor<1>, eps: f64) -> Tensor<2> {
    crate::operation!("layer_norm");
    let [n, d] = x.dims();
    assert!(
        weight.dims() == [d] && bias.dims() == [d],
        "layer_norm: rows of [{n}, {d}] need {d} weights and biases, not {:?} and {:?}",
        weight.dims(),
        bias.dims()
    );
    let types = [x.dtype(), weight.dtype(), bias.dtype()];
    if types != [DType::F32; 3] || !is_served_by_cpu(&x) {
        return reference::layer_norm(x, weight, bias, eps);
    }
    Tensor::from_dispatch(Dispatch::trained_layer_norm(
        x.into_dispatch(),
        weight.clone().into_dispatch(),
        bias.clone().into_dispatch(),
        eps as f32,
    ))
}
