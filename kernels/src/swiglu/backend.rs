//! SwiGLU for tensors in CPU memory, and its backward pass for any backend.

use burn::backend::Flex;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;

use super::{SwigluGradients, SwigluOps, cpu};
use crate::cpu::buffer::{contiguous, dims, numbers, tensor};
use crate::cpu::number::with_element_type;

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

#[derive(Debug)]
struct SwigluBackward;

impl<B: SwigluGradients> Backward<B, 1> for SwigluBackward {
    /// `gate_up`.
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        crate::operation!("swiglu backward");
        let dy = gradients.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            gradients.register::<B>(parent.id, B::gated_silu_gradient(ops.state, dy));
        }
    }
}

impl<B: SwigluGradients, C: CheckpointStrategy> SwigluOps for Autodiff<B, C> {
    fn gated_silu(gate_up: FloatTensor<Self>) -> FloatTensor<Self> {
        let prepared = SwigluBackward
            .prepare::<C>([gate_up.node()])
            .compute_bound()
            .stateful();
        let gate_up = gate_up.into_primitive();
        let y = B::gated_silu(gate_up.clone());
        match prepared {
            OpsKind::Tracked(prep) => prep.finish(gate_up, y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}
