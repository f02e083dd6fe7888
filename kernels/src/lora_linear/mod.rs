//! A frozen linear map with an optional trainable low-rank adapter beside it.
//!
//! The adapter stays factored: `W + s B A` is never formed, so that neither a dense gradient nor
//! a second copy of the weights exists.

pub mod reference;

use burn::tensor::Tensor;

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
    reference::lora_linear(x, weight, bias, adapter)
}
