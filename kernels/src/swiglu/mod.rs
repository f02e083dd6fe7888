//! The gate of a SwiGLU feed-forward block.

pub mod reference;

use burn::tensor::Tensor;

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
    reference::swiglu(gate, up)
}
