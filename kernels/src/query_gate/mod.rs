//! Gates of attention's output, which a projection gives beside the queries.

mod backend;
mod cpu;
pub mod reference;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use crate::route::is_served_by_cpu;
use backend::QueryGateOps;

/// Heads of which each query head is followed by its gate; keys and values come behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedHeads {
    /// Query heads, and as many gates.
    pub queries: usize,
    /// Heads of keys and of values together.
    pub others: usize,
    /// Numbers of a head.
    pub dim: usize,
}

impl GatedHeads {
    /// Numbers of a token's queries, gates, keys and values.
    pub fn width(&self) -> usize {
        (2 * self.queries + self.others) * self.dim
    }
}

/// Queries, keys and values without the gates.
///
/// # Shapes
///
/// - `x`: `[n, width]`, f32 or bf16
/// - returns: `[n, queries + others, dim]`, same dtype
///
/// A GPU has no kernel: there it goes to the reference.
///
/// # Panics
///
/// If `x` has another width.
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
/// - `x`: `[n, width]`, same dtype, of which the gates are read
/// - returns: `[n, queries, dim]`, same dtype
///
/// A GPU has no kernel: there it goes to the reference.
///
/// # Panics
///
/// If the shapes do not fit each other.
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
        "query_gate: a gate for each number of attention's output"
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
        "query_gate: columns of {heads:?}"
    );
}
