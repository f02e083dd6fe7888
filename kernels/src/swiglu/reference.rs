//! SwiGLU in plain tensor operations.

use burn::tensor::{Tensor, activation};

use crate::route::arithmetic;

/// Same contract as [`super::swiglu`]; f64 inputs are computed in f64.
pub fn swiglu(gate_up: Tensor<2>) -> Tensor<2> {
    let dtype = gate_up.dtype();
    let gate_up = gate_up.cast(arithmetic(dtype));
    let f = gate_up.dims()[1] / 2;
    let gate = gate_up.clone().narrow(1, 0, f);
    let up = gate_up.narrow(1, f, f);
    activation::silu(gate).mul(up).cast(dtype)
}
