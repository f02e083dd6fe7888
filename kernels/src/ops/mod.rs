//! Operations that backends implement themselves, in place of compositions of tensor operations.
//!
//! [`KernelOps`] is what public functions call: autodiff implements it for any backend that has
//! [`KernelGradients`], so that each backward pass is written once. Tensors that no implementation
//! serves go to the reference of the operation; [`is_fused`] decides.

mod autodiff;
mod flex;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, DispatchDevice, backend_extension};
use burn::tensor::{DType, Device, Tensor};

use crate::attention::{Causality, Documents};
use crate::rope::cpu::Turn;

/// Fused operations, differentiable where the backend is.
#[backend_extension(Autodiff, Flex)]
pub(crate) trait KernelOps: Backend {
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

/// Whether a fused implementation serves the tensor: f32 and bf16 on the CPU.
pub(crate) fn is_fused<const D: usize>(x: &Tensor<D>) -> bool {
    matches!(x.dtype(), DType::F32 | DType::BF16) && is_cpu(&x.device())
}

/// Whether tensors of the device lie in the memory of the CPU, under autodiff or not.
pub(crate) fn is_cpu(device: &Device) -> bool {
    is_flex(device.as_dispatch())
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
