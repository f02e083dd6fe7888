//! GeGLU in plain tensor operations.

use burn::tensor::{Tensor, activation};

use super::cpu::{CUBIC, INNER};
use crate::route::arithmetic;

/// Same contract as [`super::geglu`]; f64 inputs are computed in f64.
pub fn geglu(gate_up: Tensor<2>) -> Tensor<2> {
    let dtype = gate_up.dtype();
    let gate_up = gate_up.cast(arithmetic(dtype));
    let f = gate_up.dims()[1] / 2;
    let gate = gate_up.clone().narrow(1, 0, f);
    let up = gate_up.narrow(1, f, f);
    let cubed = gate.clone().powi_scalar(3).mul_scalar(CUBIC);
    // `(1 + tanh(t)) / 2` without the cancellation of the sum for small results.
    let sigmoid = activation::sigmoid(gate.clone().add(cubed).mul_scalar(2.0 * INNER));
    gate.mul(sigmoid).mul(up).cast(dtype)
}
