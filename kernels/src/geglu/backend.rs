//! GeGLU as an operation of the CPU backend, with its backward pass.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, backend_extension};

use super::cpu;
use crate::cpu::buffer::{contiguous, dims, numbers, tensor};
use crate::cpu::number::with_element_type;
use crate::with_backward::with_backward;

/// Operation that a backend implements itself.
#[backend_extension(Autodiff, Flex)]
pub(crate) trait GegluOps: Backend {
    /// `gelu(gate) * up`.
    fn gated_gelu(gate_up: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// The backward pass, on tensors that are not part of an autodiff graph.
pub(crate) trait GegluGradients: GegluOps {
    /// Gradient of `gate_up`.
    fn gated_gelu_gradient(gate_up: FloatTensor<Self>, dy: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl GegluOps for Flex {
    fn gated_gelu(gate_up: FlexTensor) -> FlexTensor {
        let gate_up = contiguous(gate_up);
        let [n, columns] = dims(&gate_up);
        let shape = [n, columns / 2];
        with_element_type!(gate_up.dtype(), T => {
            tensor(cpu::geglu::<T>(numbers(&gate_up), shape), shape)
        })
    }
}

impl GegluGradients for Flex {
    fn gated_gelu_gradient(gate_up: FlexTensor, dy: FlexTensor) -> FlexTensor {
        let dy = contiguous(dy);
        let f = dims::<2>(&dy)[1];
        with_element_type!(gate_up.dtype(), T => {
            cpu::to_gradient::<T>(gate_up, numbers(&dy), f)
        })
    }
}

impl<B: GegluGradients, C: CheckpointStrategy> GegluOps for Autodiff<B, C> {
    fn gated_gelu(gate_up: FloatTensor<Self>) -> FloatTensor<Self> {
        let inputs = [gate_up.node()];
        let gate_up = gate_up.into_primitive();
        let y = B::gated_gelu(gate_up.clone());
        with_backward::<B, C, _, _>(inputs, y, move |dy, _| {
            crate::operation!("geglu backward");
            [Some(B::gated_gelu_gradient(gate_up, dy))]
        })
    }
}
