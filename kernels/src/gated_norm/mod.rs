//! RMSNorm of heads, multiplied with `silu` of a gate.

pub(crate) mod cpu;
pub mod reference;

use burn::backend::Flex;
use burn::tensor::{DType, Tensor};

use crate::cpu::buffer::{plain, tensor};
use crate::cpu::number::with_number;
use crate::route::is_served_by_cpu;
use cpu::Norm;

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
/// The kernel is the CPU's, for tensors without a graph; others go to the reference.
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
    let normed = || {
        let weight = plain(&norm.weight, DType::F32)?;
        let norm = Norm {
            weight: weight.numbers(),
            eps: norm.eps as f32,
        };
        let heads_read = is_served_by_cpu(&x).then(|| plain(&x, x.dtype()))??;
        let gate = plain(&gate, x.dtype())?;
        Some(with_number!(x.dtype(), T => {
            tensor(cpu::forward::<T>(heads_read.numbers(), gate.numbers(), norm), [n, heads, c])
        }))
    };
    match normed() {
        Some(normed) => Tensor::from_primitive::<Flex>(normed),
        None => reference::gated_norm(x, gate, norm),
    }
}
