//! RMSNorm of heads, multiplied with `silu` of a gate.

pub(crate) mod cpu;
pub mod reference;

use burn::backend::Flex;
use burn::tensor::{DType, Tensor};

use crate::cpu::buffer::{plain, tensor};
use crate::cpu::number::with_element_type;
use crate::route::is_served_by_cpu;
use cpu::Norm;

/// Frozen parameters of the norm.
#[derive(Debug, Clone)]
pub struct GatedNorm {
    /// One weight per element of a head, `[c]`, f32.
    pub weight: Tensor<1>,
    /// Added to the mean square of a head.
    pub eps: f64,
}

/// `x / rms(x) * weight * silu(gate)` for each head.
///
/// # Shapes
///
/// - `x`: `[n, heads, c]`, f32 or bf16
/// - `gate`: `[n, heads * c]`, same dtype
/// - returns: `[n, heads, c]`, same dtype
///
/// The kernel runs on the CPU for tensors without an autodiff graph; others use the reference.
///
/// # Panics
///
/// If the shapes do not match.
///
/// # Source
///
/// `Qwen3_5RMSNormGated` of transformers 5.23.
pub fn gated_norm(x: Tensor<3>, gate: Tensor<2>, norm: &GatedNorm) -> Tensor<3> {
    let [n, heads, c] = x.dims();
    assert!(
        gate.dims() == [n, heads * c] && norm.weight.dims() == [c],
        "gated_norm: an input of shape [{n}, {heads}, {c}] does not match a gate of {:?} and weights of {:?}",
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
        Some(with_element_type!(x.dtype(), T => {
            tensor(cpu::forward::<T>(heads_read.numbers(), gate.numbers(), norm), [n, heads, c])
        }))
    };
    match normed() {
        Some(normed) => Tensor::from_primitive::<Flex>(normed),
        None => reference::gated_norm(x, gate, norm),
    }
}
