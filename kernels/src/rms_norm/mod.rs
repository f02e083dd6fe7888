//! Normalises hidden states to unit root mean square, scaled by a frozen weight.
//!
//! The input residual stream is f32; only the input of the projections may be bf16.

mod backend;
mod cpu;
#[cfg(target_arch = "x86_64")]
mod cpu_avx2;
#[cfg(target_arch = "x86_64")]
mod cpu_avx512;
#[cfg(feature = "cube")]
pub(crate) mod cuda;
pub mod reference;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{DType, Tensor};

use crate::route::is_served;

/// Divides each row by its root mean square and multiplies by `weight`, which is frozen.
///
/// The gradient of `x` is f32.
///
/// # Shapes
///
/// - `x`: `[n, d]`, f32
/// - `weight`: `[d]`, f32
/// - returns: `[n, d]` of dtype `output`, f32 or bf16
///
/// # Panics
///
/// If the number of weights differs from the number of columns.
///
/// # Source
///
/// Zhang and Sennrich 2019, equation 4; `LlamaRMSNorm` of transformers 5.23.
pub fn rms_norm(x: Tensor<2>, weight: &Tensor<1>, eps: f64, output: DType) -> Tensor<2> {
    crate::operation!("rms_norm");
    let [n, d] = x.dims();
    assert!(
        weight.dims() == [d],
        "rms_norm: rows of [{n}, {d}] need {d} weights, not {:?}",
        weight.dims()
    );
    let uses_kernel = is_served(&x) && is_served(weight);
    let types = [x.dtype(), weight.dtype()] == [DType::F32; 2];
    if !(uses_kernel && types && matches!(output, DType::F32 | DType::BF16)) {
        return reference::rms_norm(x, weight, eps, output);
    }
    let weight = weight.clone().into_dispatch();
    Tensor::from_dispatch(Dispatch::frozen_rms_norm(
        x.into_dispatch(),
        weight,
        eps as f32,
        output,
    ))
}

/// Operation that a backend implements itself.
#[backend_extension(
    Autodiff,
    Flex,
    Cube: cfg(feature = "cube"),
)]
pub(crate) trait RmsNormOps: Backend {
    /// Rows of unit root mean square, multiplied by the frozen weight.
    fn frozen_rms_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        eps: f32,
        output: DType,
    ) -> FloatTensor<Self>;
}

/// The backward pass, on tensors that are not part of an autodiff graph.
#[backend_extension(Flex, Cube: cfg(feature = "cube"))]
pub(crate) trait RmsNormGradients: RmsNormOps {
    /// Gradient of `x`, f32.
    fn rms_norm_gradient(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        eps: f32,
        dy: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}
