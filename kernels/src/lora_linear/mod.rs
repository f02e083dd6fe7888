//! Frozen linear maps that share an input, with trainable low-rank adapters beside them.
//!
//! Queries, keys and values read the same rows, as do gate and up: stacked, they are one product
//! with one pass over the input, and one gradient of it. Adapters stay factored: `W + s B A` is
//! never formed, so that neither a dense gradient nor a second copy of the weights exists.

mod adapter;
mod backend;
#[cfg(any(test, feature = "cube"))]
mod composed;
pub(crate) mod cpu;
pub(crate) mod cpu_bf16;
pub(crate) mod cpu_bf16_factors;
#[cfg(feature = "cube")]
mod cuda;
pub mod reference;

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::{DType, Tensor};

pub use adapter::{AdapterLayout, AdapterPart, StackedAdapter};
use backend::{Frozen, LinearOps, Maybe, Spec};

use crate::dropout::Dropout;
use crate::frozen_weight::{FrozenWeight, Storage};
use crate::route::is_served;

/// Linear maps of one input, stacked.
#[derive(Debug, Clone)]
pub struct StackedLinear {
    /// `[Σ out, in]`, frozen: the maps' weights, one below the other.
    pub weight: FrozenWeight,
    /// `[Σ out]`, f32, frozen; zeros for maps without a bias.
    pub bias: Option<Tensor<1>>,
    /// Output features of each map.
    pub out_features: Arc<[usize]>,
    /// The trainable factors of the maps that have some.
    pub adapter: Option<StackedAdapter>,
}

/// What is added to the output of [`lora_linear`], and what its adapters do not see.
#[derive(Debug, Clone, Default)]
pub struct Beside {
    /// The residual stream, `[n, Σ out]`, f32; the result then is f32, too.
    pub residual: Option<Tensor<2>>,
    /// Dropout of each map's adapter input; empty for none.
    pub dropout: Vec<Option<Dropout>>,
}

/// `[x W₁ᵀ + s₁ (drop₁(x) A₁ᵀ) B₁ᵀ | x W₂ᵀ + … ] + bias + residual`.
///
/// Weights and biases receive no gradient; `x`, the factors and the residual do.
///
/// # Shapes
///
/// - `x`: `[n, in]`; f32, or bf16 where the weight computes in bf16
/// - returns: `[n, Σ out]`, in the dtype of `x`, or f32 with a residual
///
/// # Source
///
/// Hu et al. 2021, section 4.1; `peft/tuners/lora/layer.py`, `Linear.forward`, peft 0.21.
pub fn lora_linear(x: Tensor<2>, linear: &StackedLinear, beside: Beside) -> Tensor<2> {
    let weight = linear.weight.storage();
    let fused_weight = match weight {
        Storage::Dense(dense) => is_served(&**dense) && x.dtype() == dense.dtype(),
        Storage::Packed(_) => x.dtype() == DType::BF16,
    };
    if !(fused_weight && is_served(&x)) {
        return reference::lora_linear(x, linear, beside);
    }
    let spec = Spec {
        out_features: linear.out_features.clone(),
        panels: match weight {
            Storage::Packed(packed) => Some(packed.clone()),
            Storage::Dense(_) => None,
        },
        adapter: linear.adapter.as_ref().map(StackedAdapter::plan),
        dropout: beside.dropout,
    };
    let frozen = Frozen {
        weight: match weight {
            Storage::Dense(dense) => Maybe::Present(dense.as_ref().clone().into_dispatch()),
            Storage::Packed(_) => Maybe::Absent,
        },
        bias: Maybe::of(linear.bias.clone().map(Tensor::into_dispatch)),
    };
    let factors = linear.adapter.as_ref();
    let factors = Maybe::of(factors.map(|adapter| adapter.factors.clone().into_dispatch()));
    let residual = Maybe::of(beside.residual.map(Tensor::into_dispatch));
    Tensor::from_dispatch(Dispatch::stacked_linear(
        x.into_dispatch(),
        factors,
        residual,
        frozen,
        spec,
    ))
}
