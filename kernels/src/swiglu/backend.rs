//! SwiGLU for tensors in CPU memory, and its backward pass for any backend.

use burn::backend::Flex;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;

use super::{SwigluGradients, SwigluOps, cpu};
use crate::cpu::buffer::{contiguous, dims, numbers, tensor};
use crate::cpu::number::with_element_type;
use crate::with_backward::with_backward;

impl SwigluOps for Flex {
    fn gated_silu(gate_up: FlexTensor) -> FlexTensor {
        let gate_up = contiguous(gate_up);
        let [n, columns] = dims(&gate_up);
        let shape = [n, columns / 2];
        with_element_type!(gate_up.dtype(), T => {
            tensor(cpu::swiglu::<T>(numbers(&gate_up), shape), shape)
        })
    }
}

impl SwigluGradients for Flex {
    fn gated_silu_gradient(gate_up: FlexTensor, dy: FlexTensor) -> FlexTensor {
        let dy = contiguous(dy);
        let f = dims::<2>(&dy)[1];
        with_element_type!(gate_up.dtype(), T => {
            cpu::to_gradient::<T>(gate_up, numbers(&dy), f)
        })
    }
}

impl<B: SwigluGradients, C: CheckpointStrategy> SwigluOps for Autodiff<B, C> {
    fn gated_silu(gate_up: FloatTensor<Self>) -> FloatTensor<Self> {
        let inputs = [gate_up.node()];
        let gate_up = gate_up.into_primitive();
        let y = B::gated_silu(gate_up.clone());
        with_backward::<B, C, _, _>(inputs, y, move |dy, _| {
            crate::operation!("swiglu backward");
            [Some(B::gated_silu_gradient(gate_up, dy))]
        })
    }
}
