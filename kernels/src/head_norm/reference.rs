//! The norm of spans in plain tensor operations.

use burn::tensor::Tensor;

use super::SpanNorm;
use crate::rms_norm::reference::rms_norm;
use crate::route::arithmetic;

/// Same contract as [`super::head_norm`]; f64 inputs are computed in f64.
pub fn head_norm(qkv: Tensor<3>, norm: &SpanNorm) -> Tensor<3> {
    let (dtype, [n, heads, c]) = (qkv.dtype(), qkv.dims());
    let inside = arithmetic(dtype);
    let rows = qkv.reshape([n, heads * c]);
    let (mut parts, mut first) = (Vec::new(), 0);
    for &span in norm.spans.iter() {
        let part = rows.clone().narrow(1, first, span).cast(inside);
        let weight = norm.weight.clone().narrow(0, first, span);
        parts.push(rms_norm(part, &weight, norm.eps, inside).cast(dtype));
        first += span;
    }
    if first < heads * c {
        parts.push(rows.narrow(1, first, heads * c - first));
    }
    Tensor::cat(parts, 1).reshape([n, heads, c])
}
