//! A frozen linear map with an optional trainable low-rank adapter beside it.
//!
//! The adapter stays factored: `W + s B A` is never formed, so that neither a dense gradient nor
//! a second copy of the weights exists.

pub(crate) mod cpu;
#[cfg(feature = "cube")]
pub mod cuda;
pub mod reference;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use crate::ops::{KernelOps, is_fused};

/// The trainable factors of one adapted projection, in PEFT's layout.
#[derive(Debug, Clone)]
pub struct LoraFactors {
    /// `[r, in]`, f32.
    pub a: Tensor<2>,
    /// `[out, r]`, f32.
    pub b: Tensor<2>,
    /// `lora_alpha / r`, or `lora_alpha / √r` with rsLoRA; computed, never configured.
    pub scaling: f64,
}

/// Multiplier of the adapter's input: `1 / (1 - p)` where it is kept, 0 where it is dropped.
#[derive(Debug, Clone)]
pub struct Dropout(pub Tensor<2>);

/// `x Wᵀ + bias + s (dropout(x) Aᵀ) Bᵀ`.
///
/// The weight and the bias receive no gradient; `x` and the factors do.
///
/// # Shapes
///
/// - `x`: `[n, in]`, float
/// - `weight`: `[out, in]`, frozen; `bias`: `[out]`, frozen
/// - `dropout`: `[n, in]`
/// - returns: `[n, out]`
///
/// # Source
///
/// Hu et al. 2021, section 4.1; `peft/tuners/lora/layer.py`, `Linear.forward`, peft 0.21.
pub fn lora_linear(
    x: Tensor<2>,
    weight: &Tensor<2>,
    bias: Option<&Tensor<1>>,
    adapter: Option<(&LoraFactors, Option<Dropout>)>,
) -> Tensor<2> {
    let factors_fused = adapter
        .as_ref()
        .is_none_or(|(factors, _)| is_fused(&factors.a) && is_fused(&factors.b));
    if !(is_fused(&x) && is_fused(weight) && factors_fused) {
        return reference::lora_linear(x, weight, bias, adapter);
    }
    let y = fused(x, weight.clone(), adapter);
    match bias {
        Some(bias) => y.add(bias.clone().unsqueeze()),
        None => y,
    }
}

fn fused(
    x: Tensor<2>,
    weight: Tensor<2>,
    adapter: Option<(&LoraFactors, Option<Dropout>)>,
) -> Tensor<2> {
    let weight = weight.into_dispatch();
    let Some((factors, dropout)) = adapter else {
        return Tensor::from_dispatch(Dispatch::frozen_linear(x.into_dispatch(), weight));
    };
    let (a, b) = (
        factors.a.clone().into_dispatch(),
        factors.b.clone().into_dispatch(),
    );
    let scaling = factors.scaling as f32;
    Tensor::from_dispatch(match dropout {
        None => Dispatch::lora_linear(x.into_dispatch(), weight, a, b, scaling),
        Some(Dropout(multiplier)) => {
            let input = x.clone().mul(multiplier).into_dispatch();
            Dispatch::lora_linear_dropped(x.into_dispatch(), input, weight, a, b, scaling)
        }
    })
}
