//! Operations that backends implement themselves, in place of compositions of tensor operations.
//!
//! [`KernelOps`] is what public functions call: autodiff implements it for any backend that has
//! [`KernelGradients`], so that each backward pass is written once. Tensors that no implementation
//! serves go to the reference of the operation; [`is_fused`] decides.

mod autodiff;
mod flex;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, DispatchDevice, backend_extension};
use burn::tensor::{DType, Tensor};

use crate::attention::{Causality, Documents};
use crate::rope::cpu::Turn;

/// Fused operations, differentiable where the backend is.
#[backend_extension(Autodiff, Flex)]
pub(crate) trait KernelOps: Backend {
    /// `x Wᵀ`; the weight is frozen.
    fn frozen_linear(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `x Wᵀ + s (x Aᵀ) Bᵀ`; the weight is frozen.
    fn lora_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        scaling: f32,
    ) -> FloatTensor<Self>;

    /// The same with an adapter's input of its own: `x Wᵀ + s (input Aᵀ) Bᵀ`.
    fn lora_linear_dropped(
        x: FloatTensor<Self>,
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        scaling: f32,
    ) -> FloatTensor<Self>;

    /// Rows of unit root mean square times the weight, which is frozen.
    fn frozen_rms_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        eps: f32,
    ) -> FloatTensor<Self>;

    /// Heads turned by the angles of a table, which is constant.
    fn rotate(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        turn: Turn,
    ) -> FloatTensor<Self>;

    /// `silu(gate) * up`.
    fn gated_silu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Attention within documents.
    fn document_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        documents: Documents,
        causality: Causality,
    ) -> FloatTensor<Self>;
}

/// Pieces of the backward passes, on tensors without a graph.
pub(crate) trait KernelGradients: KernelOps {
    /// `s x Aᵀ`.
    fn low_rank(x: FloatTensor<Self>, a: FloatTensor<Self>, scaling: f32) -> FloatTensor<Self>;

    /// `x Wᵀ + low Bᵀ`.
    fn adapted(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        low: FloatTensor<Self>,
        b: FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// Gradients of `low_rank`'s result times `s`, of `a` and of `b`.
    fn factor_gradients(saved: Adapted<Self>, dy: FloatTensor<Self>) -> [FloatTensor<Self>; 3];

    /// `dy W`, plus `d_low A` where given.
    fn linear_dx(
        dy: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        low: Option<(FloatTensor<Self>, FloatTensor<Self>)>,
    ) -> FloatTensor<Self>;

    /// Gradient of `x` through the norm.
    fn rms_norm_dx(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        eps: f32,
        dy: FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// Gradients of `gate` and `up`.
    fn gated_silu_gradients(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        dy: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2];

    /// Attention, and what its backward pass needs of it.
    fn attention_forward(
        inputs: [FloatTensor<Self>; 3],
        documents: Documents,
        causality: Causality,
    ) -> Attention<Self>;

    /// Gradients of queries, keys and values.
    fn attention_gradients(saved: Attention<Self>, dy: FloatTensor<Self>)
    -> [FloatTensor<Self>; 3];
}

/// A forward pass of attention.
#[derive(Debug, Clone)]
pub(crate) struct Attention<B: Backend> {
    /// Queries, keys and values.
    pub(crate) inputs: [FloatTensor<B>; 3],
    pub(crate) documents: Documents,
    pub(crate) causality: Causality,
    /// `[n, h, c]`.
    pub(crate) out: FloatTensor<B>,
    /// Logarithms of the sums of exponentials, `[n, h]`.
    pub(crate) log_sums: FloatTensor<B>,
}

/// What an adapter's backward pass needs of its forward pass.
#[derive(Debug, Clone)]
pub(crate) struct Adapted<B: Backend> {
    /// The adapter's input, `[n, in]`.
    pub(crate) input: FloatTensor<B>,
    /// `s input Aᵀ`, `[n, r]`.
    pub(crate) low: FloatTensor<B>,
    /// `[r, in]`.
    pub(crate) a: FloatTensor<B>,
    /// `[out, r]`.
    pub(crate) b: FloatTensor<B>,
    /// `s`.
    pub(crate) scaling: f32,
}

/// Whether a fused implementation serves the tensor: f32 on the CPU.
pub(crate) fn is_fused<const D: usize>(x: &Tensor<D>) -> bool {
    x.dtype() == DType::F32 && is_flex(x.device().as_dispatch())
}

fn is_flex(device: &DispatchDevice) -> bool {
    match device {
        DispatchDevice::Flex(_) => true,
        DispatchDevice::Autodiff(device) => is_flex(device),
        #[allow(
            unreachable_patterns,
            reason = "other backends are features of the build"
        )]
        _ => false,
    }
}
