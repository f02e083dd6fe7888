//! The gated norm in plain tensor operations.

use burn::tensor::{Tensor, activation};

use super::GatedNorm;
use crate::rms_norm::reference::rms_norm;
use crate::route::arithmetic;

/// Same contract as [`super::gated_norm`]; f64 inputs are computed in f64.
pub fn gated_norm(x: Tensor<3>, gate: Tensor<2>, norm: &GatedNorm) -> Tensor<3> {
    let (dtype, [n, heads, c]) = (x.dtype(), x.dims());
    let inside = arithmetic(dtype);
    let rows = x.cast(inside).reshape([n * heads, c]);
    let normed = rms_norm(rows, &norm.weight, norm.eps, inside);
    let gate = activation::silu(gate.cast(inside)).reshape([n * heads, c]);
    normed.mul(gate).reshape([n, heads, c]).cast(dtype)
}
