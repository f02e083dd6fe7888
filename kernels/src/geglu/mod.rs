//! The activation of a GeGLU feed-forward block.
//!
//! Gate and up projection are one linear layer, so their output is read once and its gradient is one
//! tensor.

mod backend;
mod cpu;
pub mod reference;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use crate::route::is_served_by_cpu;
use backend::GegluOps;

/// `gelu(gate) * up`, with the tanh approximation of GELU.
///
/// # Shapes
///
/// - `gate_up`: `[n, 2 f]`, f32 or bf16: `gate` in the first `f` columns, `up` in the rest
/// - returns: `[n, f]`, same dtype
///
/// There is no GPU kernel; GPUs use the reference.
///
/// # Panics
///
/// If the number of columns is odd.
///
/// # Source
///
/// Shazeer 2020, equation 6; `gelu_pytorch_tanh` of transformers 5.23.
pub fn geglu(gate_up: Tensor<2>) -> Tensor<2> {
    crate::operation!("geglu");
    let columns = gate_up.dims()[1];
    assert!(
        columns.is_multiple_of(2),
        "geglu: {columns} columns cannot be halved into gate and up; concatenate the outputs of \
         both projections"
    );
    if !is_served_by_cpu(&gate_up) {
        return reference::geglu(gate_up);
    }
    Tensor::from_dispatch(Dispatch::gated_gelu(gate_up.into_dispatch()))
}
