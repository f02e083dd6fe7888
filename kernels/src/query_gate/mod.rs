//! Gates of the attention output, computed by the query projection.

mod backend;
mod cpu;
pub mod reference;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use crate::route::is_served_by_cpu;
use backend::QueryGateOps;

/// Head layout in which each query head is followed by its gate; keys and values come last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedHeads {
    /// Number of query heads, and of gates.
    pub queries: usize,
    /// Number of key and value heads together.
    pub key_values: usize,
    /// Head size.
    pub dim: usize,
}

impl GatedHeads {
    /// Elements of a token's queries, gates, keys and values.
    pub fn width(&self) -> usize {
        (2 * self.queries + self.key_values) * self.dim
    }
}

/// Queries, keys and values without the gates.
///
/// # Shapes
///
/// - `x`: `[n, width]`, f32 or bf16
/// - returns: `[n, queries + key_values, dim]`, same dtype
///
/// There is no GPU kernel; GPUs use the reference.
///
/// # Panics
///
/// If the width of `x` differs.
pub fn without_gates(x: Tensor<2>, heads: GatedHeads) -> Tensor<3> {
    crate::operation!("query_gate");
    check(&x, heads);
    if !is_served_by_cpu(&x) {
        return reference::without_gates(x, heads);
    }
    Tensor::from_dispatch(Dispatch::heads_without_gates(x.into_dispatch(), heads))
}

/// `attended * sigmoid(gate)` of each query head.
///
/// # Shapes
///
/// - `attended`: `[n, queries, dim]`, f32 or bf16
/// - `x`: `[n, width]`, same dtype; the gates are read
/// - returns: `[n, queries, dim]`, same dtype
///
/// There is no GPU kernel; GPUs use the reference.
///
/// # Panics
///
/// If the shapes do not match.
///
/// # Source
///
/// `Qwen3_5Attention` of transformers 5.23.
pub fn gated(attended: Tensor<3>, x: Tensor<2>, heads: GatedHeads) -> Tensor<3> {
    crate::operation!("query_gate");
    check(&x, heads);
    assert_eq!(
        attended.dims(),
        [x.dims()[0], heads.queries, heads.dim],
        "query_gate: there must be a gate for each element of the attention output"
    );
    if !(is_served_by_cpu(&x) && is_served_by_cpu(&attended) && x.dtype() == attended.dtype()) {
        return reference::gated(attended, x, heads);
    }
    Tensor::from_dispatch(Dispatch::heads_gated(
        attended.into_dispatch(),
        x.into_dispatch(),
        heads,
    ))
}

fn check(x: &Tensor<2>, heads: GatedHeads) {
    assert_eq!(
        x.dims()[1],
        heads.width(),
        "query_gate: the number of columns does not match {heads:?}"
    );
}
