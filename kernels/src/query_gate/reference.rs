//! Gates of queries in plain tensor operations.

use burn::tensor::{Tensor, activation};

use super::GatedHeads;
use crate::route::arithmetic;

/// Queries and their gates, `[n, queries, dim]` each.
fn split_gates(x: Tensor<2>, heads: GatedHeads) -> [Tensor<3>; 2] {
    let GatedHeads { queries, dim, .. } = heads;
    let n = x.dims()[0];
    let parts: Tensor<4> = x
        .narrow(1, 0, 2 * queries * dim)
        .reshape([n, queries, 2, dim]);
    [0, 1].map(|part| {
        let part = parts.clone().narrow(2, part, 1);
        part.reshape([n, queries, dim])
    })
}

/// Same contract as [`super::without_gates`].
pub fn without_gates(x: Tensor<2>, heads: GatedHeads) -> Tensor<3> {
    let GatedHeads {
        queries,
        key_values,
        dim,
    } = heads;
    let n = x.dims()[0];
    let other_heads = x.clone().narrow(1, 2 * queries * dim, key_values * dim);
    let [queries, _] = split_gates(x, heads);
    Tensor::cat(vec![queries, other_heads.reshape([n, key_values, dim])], 1)
}

/// Same contract as [`super::gated`]; f64 inputs are computed in f64.
pub fn gated(attended: Tensor<3>, x: Tensor<2>, heads: GatedHeads) -> Tensor<3> {
    let dtype = attended.dtype();
    let inside = arithmetic(dtype);
    let [_, gate] = split_gates(x, heads);
    let gate = activation::sigmoid(gate.cast(inside));
    attended.cast(inside).mul(gate).cast(dtype)
}
