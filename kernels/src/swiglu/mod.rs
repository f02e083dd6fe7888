//! The gate of a SwiGLU feed-forward block.

pub(crate) mod cpu;
#[cfg(feature = "cube")]
pub mod cuda;
pub mod reference;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use crate::ops::{KernelOps, is_fused};

/// `silu(gate) * up`, with `silu(x) = x * sigmoid(x)`.
///
/// # Shapes
///
/// - `gate`, `up`: `[n, intermediate]`, float
/// - returns: `[n, intermediate]`
///
/// # Source
///
/// Shazeer 2020, equation 6, without biases.
pub fn swiglu(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    if !(is_fused(&gate) && is_fused(&up)) {
        return reference::swiglu(gate, up);
    }
    Tensor::from_dispatch(Dispatch::gated_silu(
        gate.into_dispatch(),
        up.into_dispatch(),
    ))
}
