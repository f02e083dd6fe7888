//! SwiGLU in plain tensor operations.

use burn::tensor::{Tensor, activation};

/// The contract is [`super::swiglu`]'s.
pub fn swiglu(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    activation::silu(gate).mul(up)
}
