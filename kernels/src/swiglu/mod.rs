//! The activation of a SwiGLU feed-forward block.
//!
//! Gate and up projection are one linear layer, so their output is read once and its gradient is one
//! tensor.

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
use burn::tensor::Tensor;

use crate::route::is_served;

/// `silu(gate) * up`, with `silu(x) = x * sigmoid(x)`.
///
/// # Shapes
///
/// - `gate_up`: `[n, 2 f]`, f32 or bf16: `gate` in the first `f` columns, `up` in the rest
/// - returns: `[n, f]`, same dtype
///
/// # Panics
///
/// If the number of columns is odd.
///
/// # Source
///
/// Shazeer 2020, equation 6, without biases.
pub fn swiglu(gate_up: Tensor<2>) -> Tensor<2> {
    crate::operation!("swiglu");
    let columns = gate_up.dims()[1];
    assert!(
        columns.is_multiple_of(2),
        "swiglu: {columns} columns cannot be halved into gate and up; concatenate the outputs of \
         both projections"
    );
    if !is_served(&gate_up) {
        return reference::swiglu(gate_up);
    }
    Tensor::from_dispatch(Dispatch::gated_silu(gate_up.into_dispatch()))
}

/// Operation that a backend implements itself.
#[backend_extension(
    Autodiff,
    Flex,
    Cube: cfg(feature = "cube"),
)]
pub(crate) trait SwigluOps: Backend {
    /// `silu(gate) * up`.
    fn gated_silu(gate_up: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// The backward pass, on tensors that are not part of an autodiff graph.
#[backend_extension(Flex, Cube: cfg(feature = "cube"))]
pub(crate) trait SwigluGradients: SwigluOps {
    /// Gradient of `gate_up`.
    fn gated_silu_gradient(gate_up: FloatTensor<Self>, dy: FloatTensor<Self>) -> FloatTensor<Self>;
}
