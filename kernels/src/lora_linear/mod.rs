//! Frozen linear layers that share an input, with trainable low-rank adapters (LoRA).
//!
//! Query, key and value projections have the same input, as do gate and up. Stacked, they are one
//! product with one pass over the input, and one input gradient. Adapters stay factored: `W + s B
//! A` is never computed, so there is neither a dense gradient nor a second copy of the weights.

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
use backend::{Frozen, LinearOps, Operands, Spec, TransformSpec};
pub use flat_gradient::FlatGradient;
pub use magnitudes::Magnitudes;
pub use shared_gradient::SharedGradient;

use crate::dropout::Dropout;
use crate::frozen_weight::{FrozenWeight, Storage};
use crate::maybe::Maybe;
use crate::route::{is_cpu, is_served};

/// Stacked linear layers with a common input.
#[derive(Debug, Clone)]
pub struct StackedLinear {
    /// `[Σ out, in]`, frozen: the concatenated weights of the layers.
    pub weight: FrozenWeight,
    /// `[Σ out]`, f32, frozen; zeros for layers without a bias.
    pub bias: Option<Tensor<1>>,
    /// Output features of each layer.
    pub out_features: Arc<[usize]>,
    /// The trainable LoRA factors of the adapted layers.
    pub adapter: Option<StackedAdapter>,
}

impl StackedLinear {
    /// The same layers with a single adapter of the whole output, for inference: with few rows,
    /// fewer products are faster. Returns the layers unchanged on the CPU, where adapters are not
    /// separate products, and if the layers have different scalings or magnitudes.
    #[must_use]
    pub fn with_combined_adapter(&self) -> Self {
        let dtype = self.weight.compute_dtype().dtype();
        let adapter = match &self.adapter {
            Some(adapter) if !is_cpu(&adapter.factors.device()) => adapter.combined(dtype),
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

/// Transformation of the layers' input.
///
/// The backward pass stores the original input and recomputes the transformed one in a single pass;
/// this saves three tenths of the activations that a layer would otherwise store.
#[derive(Debug, Clone, Default)]
pub enum InputTransform {
    /// No transformation.
    #[default]
    Plain,
    /// [`rms_norm`](crate::rms_norm::rms_norm) of the f32 residual stream, in the weight's compute
    /// dtype.
    Normed {
        /// `[in]`, f32, frozen.
        weight: Box<Tensor<1>>,
        /// Added to the mean square.
        eps: f64,
    },
    /// [`swiglu`](crate::swiglu::swiglu) of gate and up, `[n, 2 in]`.
    Gated,
}

/// Optional arguments of [`lora_linear`]: input transformation, residual and dropout.
#[derive(Debug, Clone, Default)]
pub struct LinearExtras {
    /// Transformation of the input.
    pub transform: InputTransform,
    /// The residual stream, `[n, Σ out]`, f32; the result is then also f32.
    pub residual: Option<Tensor<2>>,
    /// Dropout of each layer's adapter input; empty if there is none.
    pub dropout: Vec<Option<Dropout>>,
    /// The output is only differentiated, so its values are arbitrary.
    pub unread: bool,
    /// For a stack that reads a norm of the residual stream, and the later stack that adds to the
    /// same stream: computes the gradient of the stream in one pass.
    pub shared_gradient: Option<SharedGradient>,
}

/// `[x W₁ᵀ + s₁ (drop₁(x) A₁ᵀ) B₁ᵀ | x W₂ᵀ + … ] + bias + residual`, where `x` is the transformed
/// input.
///
/// Weights and biases receive no gradient; `x`, the factors and the residual do. With
/// [`Magnitudes`] the layers are DoRA's.
///
/// # Shapes
///
/// - `x`: `[n, in]`; f32, or bf16 if the weight computes in bf16; see [`InputTransform`]
/// - returns: `[n, Σ out]`, in the dtype of the transformed input, or f32 with a residual
///
/// # Panics
///
/// If the shapes do not match: a bug of the caller.
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
    let input_dtype = match extras.transform {
        InputTransform::Normed { .. } => linear.weight.compute_dtype().dtype(),
        InputTransform::Plain | InputTransform::Gated => x.dtype(),
    };
    let fused_weight = match weight {
        Storage::Dense(dense) => is_served(&**dense) && input_dtype == dense.dtype(),
        Storage::Packed(packed) => input_dtype == packed.dtype(),
        Storage::Quantised(quantised) => input_dtype == quantised.compute_dtype().dtype(),
    };
    if !(fused_weight && is_served(&x)) {
        return reference::lora_linear(x, linear, extras);
    }
    let spec = Spec {
        out_features: linear.out_features.clone(),
        panels: match weight {
            Storage::Packed(packed) => Some(packed.clone()),
            Storage::Dense(_) | Storage::Quantised(_) => None,
        },
        quantised: match weight {
            Storage::Quantised(quantised) => Some(quantised.clone()),
            Storage::Dense(_) | Storage::Packed(_) => None,
        },
        adapter: linear.adapter.as_ref().map(StackedAdapter::plan),
        dropout: extras.dropout,
        unread: extras.unread,
        shared_gradient: extras.shared_gradient,
        transform: match &extras.transform {
            InputTransform::Plain => TransformSpec::Plain,
            InputTransform::Normed { eps, .. } => TransformSpec::Normed {
                eps: *eps as f32,
                output: input_dtype,
            },
            InputTransform::Gated => TransformSpec::Gated,
        },
    };
    let frozen = Frozen {
        weight: match weight {
            Storage::Dense(dense) => Maybe::Present(dense.as_ref().clone().into_dispatch()),
            Storage::Packed(_) | Storage::Quantised(_) => Maybe::Absent,
        },
        bias: Maybe::from_option(linear.bias.clone().map(Tensor::into_dispatch)),
        norm: match extras.transform {
            InputTransform::Normed { weight, .. } => Maybe::Present(weight.into_dispatch()),
            InputTransform::Plain | InputTransform::Gated => Maybe::Absent,
        },
        rounded: Maybe::from_option(
            linear
                .adapter
                .as_ref()
                .and_then(|adapter| adapter.rounded.clone())
                .map(Tensor::into_dispatch),
        ),
    };
    let factors = linear.adapter.as_ref();
    let factors =
        Maybe::from_option(factors.map(|adapter| adapter.factors.clone().into_dispatch()));
    let operands = Operands {
        factors,
        residual: Maybe::from_option(extras.residual.map(Tensor::into_dispatch)),
        frozen,
    };
    Tensor::from_dispatch(Dispatch::stacked_linear(x.into_dispatch(), operands, spec))
}

/// Checks the shapes of an input `[n, columns]`, the layers and the optional arguments.
fn assert_shapes([n, columns]: [usize; 2], linear: &StackedLinear, extras: &LinearExtras) {
    let [outputs, inputs] = linear.weight.dims();
    let needed = match extras.transform {
        InputTransform::Gated => 2 * inputs,
        InputTransform::Plain | InputTransform::Normed { .. } => inputs,
    };
    assert_eq!(
        columns, needed,
        "lora_linear: the columns of x must fit a weight with {inputs} inputs"
    );
    let layers = &linear.out_features;
    let total: usize = layers.iter().sum();
    assert_eq!(
        total, outputs,
        "lora_linear: the outputs of the layers must add up to the outputs of the weight"
    );
    if let InputTransform::Normed { weight, .. } = &extras.transform {
        assert_eq!(
            weight.dims(),
            [inputs],
            "lora_linear: the norm needs one weight per input"
        );
    }
    if let Some(bias) = &linear.bias {
        assert_eq!(
            bias.dims(),
            [outputs],
            "lora_linear: the bias needs one element per output"
        );
    }
    if let Some(residual) = &extras.residual {
        assert_eq!(
            residual.dims(),
            [n, outputs],
            "lora_linear: the shape of the residual must be [rows of x, outputs]"
        );
    }
    if let Some(adapter) = &linear.adapter {
        let layout = adapter.layout();
        let shape = [layout.outputs, layout.in_features];
        assert_eq!(
            shape,
            [outputs, inputs],
            "lora_linear: outputs and inputs of adapters must match the weight"
        );
    }
    let dropouts = extras.dropout.len();
    assert!(
        dropouts == 0 || dropouts == layers.len(),
        "lora_linear: {dropouts} dropouts for {} layers",
        layers.len()
    );
}
