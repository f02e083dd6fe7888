//! Rotary embedding in plain tensor operations.

use burn::tensor::Tensor;

use super::RopeTable;
use crate::route::arithmetic;

/// Same contract as [`super::rope`]; f64 inputs are computed in f64.
pub fn rope(qkv: Tensor<3>, table: &RopeTable, rotated_heads: usize) -> Tensor<3> {
    let dtype = qkv.dtype();
    let inside = arithmetic(dtype);
    let [_, heads, c] = qkv.dims();
    if rotated_heads == 0 {
        return qkv;
    }
    let half = table.cos.dims()[2];
    let rotated = qkv.clone().narrow(1, 0, rotated_heads).cast(inside);
    let first = rotated.clone().narrow(2, 0, half);
    let second = rotated.clone().narrow(2, half, half);
    let (cos, sin) = (
        table.cos.clone().cast(inside),
        table.sin.clone().cast(inside),
    );
    let turned_first = first
        .clone()
        .mul(cos.clone())
        .sub(second.clone().mul(sin.clone()));
    let turned_second = second.mul(cos).add(first.mul(sin));
    let mut columns = vec![turned_first, turned_second];
    if 2 * half < c {
        columns.push(rotated.narrow(2, 2 * half, c - 2 * half));
    }
    let mut parts = vec![Tensor::cat(columns, 2).cast(dtype)];
    if rotated_heads < heads {
        parts.push(qkv.narrow(1, rotated_heads, heads - rotated_heads));
    }
    Tensor::cat(parts, 1)
}
