//! Operations that backends implement themselves, in place of compositions of tensor operations.
//!
//! [`KernelOps`] is what public functions call: autodiff implements it for any backend that has
//! [`KernelGradients`], so that each backward pass is written once. Tensors that no implementation
//! serves go to the reference of the operation; [`is_fused`] decides.

mod autodiff;
mod flex;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
use burn::tensor::{DType, Tensor};

use crate::route::is_served_by_cpu;

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
    x.dtype() == DType::F32 && is_served_by_cpu(x)
}
