//! GeGLU in plain tensor operations.

use burn::tensor::Tensor;

use super::cpu::{CUBIC, INNER};
use crate::route::arithmetic;

/// The contract is [`super::geglu`]'s; f64 is computed in f64.
pub fn geglu(gate_up: Tensor<2>) -> Tensor<2> {
    let dtype = gate_up.dtype();
    let gate_up = gate_up.cast(arithmetic(dtype));
    let f = gate_up.dims()[1] / 2;
    let gate = gate_up.clone().narrow(1, 0, f);
    let up = gate_up.narrow(1, f, f);
    let cubed = gate.clone().powi_scalar(3).mul_scalar(CUBIC);
    let tanh = gate.clone().add(cubed).mul_scalar(INNER).tanh();
    let gelu = gate.mul(tanh.add_scalar(1.0)).mul_scalar(0.5);
    gelu.mul(up).cast(dtype)
}
