//! The gated norm as an operation of the CPU backend, with its backward pass.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, backend_extension};

use super::cpu::{self, Norm};
use crate::cpu::buffer::{contiguous, dims, floats, numbers, tensor};
use crate::cpu::number::with_number;

/// What backends implement themselves.
#[backend_extension(Autodiff, Flex)]
pub(crate) trait GatedNormOps: Backend {
    /// The contract is [`super::gated_norm`]'s.
    fn norm_gated(
        x: FloatTensor<Self>,
        gate: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        eps: f32,
    ) -> FloatTensor<Self>;
}

/// The backward pass, on tensors without a graph.
pub(crate) trait GatedNormGradients: GatedNormOps {
    /// Gradients of `x` and of the gate.
    fn norm_gated_gradients(saved: Saved<Self>, dy: FloatTensor<Self>) -> [FloatTensor<Self>; 2];
}

/// What the backward pass needs.
#[derive(Debug, Clone)]
pub(crate) struct Saved<B: Backend> {
    x: FloatTensor<B>,
    gate: FloatTensor<B>,
    weight: FloatTensor<B>,
    eps: f32,
}

impl GatedNormOps for Flex {
    fn norm_gated(x: FlexTensor, gate: FlexTensor, weight: FlexTensor, eps: f32) -> FlexTensor {
        let [x, gate, weight] = [x, gate, weight].map(contiguous);
        let shape = dims::<3>(&x);
        let norm = Norm {
            weight: floats(&weight),
            eps,
        };
        with_number!(x.dtype(), T => {
            tensor(cpu::forward::<T>(numbers(&x), numbers(&gate), norm), shape)
        })
    }
}

impl GatedNormGradients for Flex {
    fn norm_gated_gradients(saved: Saved<Self>, dy: FlexTensor) -> [FlexTensor; 2] {
        let [x, gate, weight] = [saved.x, saved.gate, saved.weight].map(contiguous);
        let dy = contiguous(dy);
        let norm = Norm {
            weight: floats(&weight),
            eps: saved.eps,
        };
        let (of_x, of_gate) = (dims::<3>(&x), dims::<2>(&gate));
        with_number!(x.dtype(), T => {
            let read = [numbers::<T>(&x), numbers(&gate), numbers(&dy)];
            [
                tensor(cpu::gradient_of_x(read, norm), of_x),
                tensor(cpu::gradient_of_gate(read, norm), of_gate),
            ]
        })
    }
}

#[derive(Debug)]
struct GatedNormBackward;

impl<B: GatedNormGradients> Backward<B, 2> for GatedNormBackward {
    type State = Saved<B>;

    fn backward(self, ops: Ops<Self::State, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let dy = gradients.consume::<B>(&ops.node);
        let found = B::norm_gated_gradients(ops.state, dy);
        for (parent, gradient) in ops.parents.into_iter().zip(found) {
            if let Some(parent) = parent {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}

impl<B: GatedNormGradients, C: CheckpointStrategy> GatedNormOps for Autodiff<B, C> {
    fn norm_gated(
        x: FloatTensor<Self>,
        gate: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        eps: f32,
    ) -> FloatTensor<Self> {
        let prepared = GatedNormBackward
            .prepare::<C>([x.node(), gate.node()])
            .compute_bound()
            .stateful();
        let [x, gate, weight] = [x, gate, weight].map(|tensor| tensor.into_primitive());
        let y = B::norm_gated(x.clone(), gate.clone(), weight.clone(), eps);
        let saved = Saved {
            x,
            gate,
            weight,
            eps,
        };
        match prepared {
            OpsKind::Tracked(prep) => prep.finish(saved, y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}
