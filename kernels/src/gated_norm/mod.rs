//! RMSNorm of heads, multiplied with `silu` of a gate.

mod backend;
mod cpu;
pub mod reference;

use burn::backend::Dispatch;
use burn::tensor::{DType, Tensor};

use crate::route::is_served_by_cpu;
use backend::GatedNormOps;

/// What heads are normed with; frozen.
#[derive(Debug, Clone)]
pub struct GatedNorm {
    /// A weight for each number of a head, `[c]`, f32.
    pub weight: Tensor<1>,
    /// Added to the mean square of a head.
    pub eps: f64,
}

/// `x / rms(x) weight silu(gate)` of each head.
///
/// # Shapes
///
/// - `x`: `[n, heads, c]`, f32 or bf16
/// - `gate`: `[n, heads * c]`, same dtype
/// - returns: `[n, heads, c]`, same dtype
///
/// A GPU has no kernel: there it goes to the reference.
///
/// # Panics
///
/// If the shapes do not fit each other.
///
/// # Source
///
/// `Qwen3_5RMSNormGated` of transformers 5.23.
pub fn gated_norm(x: Tensor<3>, gate: Tensor<2>, norm: &GatedNorm) -> Tensor<3> {
    let [n, heads, c] = x.dims();
    assert!(
        gate.dims() == [n, heads * c] && norm.weight.dims() == [c],
        "gated_norm: [{n}, {heads}, {c}] does not fit a gate of {:?} and weights of {:?}",
        gate.dims(),
        norm.weight.dims()
    );
    let plain = norm.weight.dtype() == DType::F32 && is_served_by_cpu(&norm.weight);
    let served = is_served_by_cpu(&x) && is_served_by_cpu(&gate) && x.dtype() == gate.dtype();
    if !(plain && served) {
        return reference::gated_norm(x, gate, norm);
    }
    Tensor::from_dispatch(Dispatch::norm_gated(
        x.into_dispatch(),
        gate.into_dispatch(),
        norm.weight.clone().into_dispatch(),
        norm.eps as f32,
    ))
}
