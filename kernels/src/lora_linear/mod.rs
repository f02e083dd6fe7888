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
pub(crate) mod cpu_factors;
#[cfg(feature = "cuda")]
mod cublaslt;
#[cfg(feature = "cube")]
mod cuda;
mod flat_gradient;
#[cfg(feature = "cube")]
pub(crate) mod low_rank;
mod magnitudes;
pub mod reference;
mod shared_gradient;

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

pub use adapter::{AdapterLayout, AdapterPart, StackedAdapter};
use backend::{Frozen, LinearOps, Spec, TransformSpec};
pub use flat_gradient::FlatGradient;
pub use magnitudes::Magnitudes;
pub use shared_gradient::SharedGradient;

use crate::dropout::Dropout;
use crate::frozen_weight::{FrozenWeight, Storage};
use crate::maybe::Maybe;
use crate::route::{is_cpu, is_served};

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

impl StackedLinear {
    /// The same maps with one adapter of their whole output, for rows that are only computed: fewer
    /// products, which is what few rows take. On the CPU, where they are no products of their own, and
    /// where maps are scaled differently or by magnitudes, these maps as they are.
    #[must_use]
    pub fn joined(&self) -> Self {
        let dtype = self.weight.compute_dtype().dtype();
        let adapter = match &self.adapter {
            Some(adapter) if !is_cpu(&adapter.factors.device()) => adapter.joined(dtype),
            _ => None,
        };
        match adapter {
            Some(adapter) => Self {
                out_features: [adapter.layout().outputs].into(),
                adapter: Some(adapter),
                ..self.clone()
            },
            None => self.clone(),
        }
    }
}

/// What the maps read of their input.
///
/// The backward pass keeps the input as it was given and computes what was read again, which costs
/// one pass over it: three tenths of what a block would keep otherwise.
#[derive(Debug, Clone, Default)]
pub enum InputTransform {
    /// The input itself.
    #[default]
    Plain,
    /// [`rms_norm`](crate::rms_norm::rms_norm) of the residual stream, f32, in the dtype that the
    /// weight computes in.
    Normed {
        /// `[in]`, f32, frozen.
        weight: Box<Tensor<1>>,
        /// Added to the mean square.
        eps: f64,
    },
    /// [`swiglu`](crate::swiglu::swiglu) of gate and up, `[n, 2 in]`.
    Gated,
}

/// What is read, what is added to the output of [`lora_linear`], and what its adapters do not see.
#[derive(Debug, Clone, Default)]
pub struct LinearExtras {
    /// What the maps read.
    pub transform: InputTransform,
    /// The residual stream, `[n, Σ out]`, f32; the result then is f32, too.
    pub residual: Option<Tensor<2>>,
    /// Dropout of each map's adapter input; empty for none.
    pub dropout: Vec<Option<Dropout>>,
    /// The output is only differentiated: its values may be anything.
    pub unread: bool,
    /// Of a stack that reads a norm of the residual stream, and of the one behind it that adds to the
    /// same stream: the gradient of the stream is computed in one pass.
    pub shared_gradient: Option<SharedGradient>,
}

/// `[x W₁ᵀ + s₁ (drop₁(x) A₁ᵀ) B₁ᵀ | x W₂ᵀ + … ] + bias + residual`, with what is read for `x`.
///
/// Weights and biases receive no gradient; `x`, the factors and the residual do. With
/// [`Magnitudes`] the maps are DoRA's.
///
/// # Shapes
///
/// - `x`: `[n, in]`; f32, or bf16 where the weight computes in bf16; see [`InputTransform`]
/// - returns: `[n, Σ out]`, in the dtype of what is read, or f32 with a residual
///
/// # Panics
///
/// If the shapes disagree: a bug of the caller.
///
/// # Source
///
/// Hu et al. 2021, section 4.1; `peft/tuners/lora/layer.py`, `Linear.forward`, peft 0.21.
pub fn lora_linear(x: Tensor<2>, linear: &StackedLinear, extras: LinearExtras) -> Tensor<2> {
    crate::operation!(
        "lora_linear",
        "{} to {}",
        x.dims()[1],
        linear.out_features.iter().sum::<usize>()
    );
    assert_shapes(x.dims(), linear, &extras);
    if let Some(adapter) = &linear.adapter
        && let Some(magnitudes) = &adapter.magnitudes
    {
        return magnitudes::weighed_linear(x, linear, adapter, magnitudes, extras);
    }
    let weight = linear.weight.storage();
    let read = match extras.transform {
        InputTransform::Normed { .. } => linear.weight.compute_dtype().dtype(),
        InputTransform::Plain | InputTransform::Gated => x.dtype(),
    };
    let fused_weight = match weight {
        Storage::Dense(dense) => is_served(&**dense) && read == dense.dtype(),
        Storage::Packed(packed) => read == packed.dtype(),
    };
    if !(fused_weight && is_served(&x)) {
        return reference::lora_linear(x, linear, extras);
    }
    let spec = Spec {
        out_features: linear.out_features.clone(),
        panels: match weight {
            Storage::Packed(packed) => Some(packed.clone()),
            Storage::Dense(_) => None,
        },
        adapter: linear.adapter.as_ref().map(StackedAdapter::plan),
        dropout: extras.dropout,
        unread: extras.unread,
        shared_gradient: extras.shared_gradient,
        transform: match &extras.transform {
            InputTransform::Plain => TransformSpec::Plain,
            InputTransform::Normed { eps, .. } => TransformSpec::Normed {
                eps: *eps as f32,
                output: read,
            },
            InputTransform::Gated => TransformSpec::Gated,
        },
    };
    let frozen = Frozen {
        weight: match weight {
            Storage::Dense(dense) => Maybe::Present(dense.as_ref().clone().into_dispatch()),
            Storage::Packed(_) => Maybe::Absent,
        },
        bias: Maybe::of(linear.bias.clone().map(Tensor::into_dispatch)),
        norm: match extras.transform {
            InputTransform::Normed { weight, .. } => Maybe::Present(weight.into_dispatch()),
            InputTransform::Plain | InputTransform::Gated => Maybe::Absent,
        },
        rounded: Maybe::of(
            linear
                .adapter
                .as_ref()
                .and_then(|adapter| adapter.rounded.clone())
                .map(Tensor::into_dispatch),
        ),
    };
    let factors = linear.adapter.as_ref();
    let factors = Maybe::of(factors.map(|adapter| adapter.factors.clone().into_dispatch()));
    let residual = Maybe::of(extras.residual.map(Tensor::into_dispatch));
    Tensor::from_dispatch(Dispatch::stacked_linear(
        x.into_dispatch(),
        factors,
        residual,
        frozen,
        spec,
    ))
}

/// What the shapes of an input `[n, columns]`, of maps and of what is beside them must be.
fn assert_shapes([n, columns]: [usize; 2], linear: &StackedLinear, extras: &LinearExtras) {
    let [outputs, inputs] = linear.weight.dims();
    let needed = match extras.transform {
        InputTransform::Gated => 2 * inputs,
        InputTransform::Plain | InputTransform::Normed { .. } => inputs,
    };
    assert_eq!(columns, needed, "columns of x for a weight of {inputs}");
    let maps = &linear.out_features;
    let total: usize = maps.iter().sum();
    assert_eq!(total, outputs, "outputs of the maps and of the weight");
    if let InputTransform::Normed { weight, .. } = &extras.transform {
        assert_eq!(weight.dims(), [inputs], "weights of the norm");
    }
    if let Some(bias) = &linear.bias {
        assert_eq!(bias.dims(), [outputs], "a bias for each output");
    }
    if let Some(residual) = &extras.residual {
        assert_eq!(residual.dims(), [n, outputs], "the shape of the residual");
    }
    if let Some(adapter) = &linear.adapter {
        let layout = adapter.layout();
        let shape = [layout.outputs, layout.in_features];
        assert_eq!(shape, [outputs, inputs], "outputs and inputs of adapters");
    }
    let dropouts = extras.dropout.len();
    assert!(
        dropouts == 0 || dropouts == maps.len(),
        "{dropouts} dropouts for {} maps",
        maps.len()
    );
}
