//! The short convolution as an operation of the CPU backend, with its backward pass.

use std::sync::Arc;

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, backend_extension};

use super::cpu::{self, Taps};
use crate::cpu::buffer::{contiguous, dims, floats, numbers, tensor};
use crate::cpu::number::with_number;

/// What backends implement themselves.
#[backend_extension(Autodiff, Flex)]
pub(crate) trait ConvOps: Backend {
    /// The contract is [`super::causal_conv`]'s, with the weights turned, `[k, channels]`, and of each
    /// token how many of its document lie before it.
    fn convolved(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        positions: Arc<[u32]>,
    ) -> FloatTensor<Self>;
}

/// The backward pass, on tensors without a graph.
pub(crate) trait ConvGradients: ConvOps {
    /// Gradient of `x`.
    fn convolved_gradient(saved: Saved<Self>, dy: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// What the backward pass needs.
#[derive(Debug, Clone)]
pub(crate) struct Saved<B: Backend> {
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    positions: Arc<[u32]>,
}

impl ConvOps for Flex {
    fn convolved(x: FlexTensor, weight: FlexTensor, positions: Arc<[u32]>) -> FlexTensor {
        let [x, weight] = [x, weight].map(contiguous);
        let shape = dims::<2>(&x);
        let taps = Taps {
            weight: floats(&weight),
            channels: shape[1],
            positions: &positions,
        };
        with_number!(x.dtype(), T => tensor(cpu::forward::<T>(numbers(&x), taps), shape))
    }
}

impl ConvGradients for Flex {
    fn convolved_gradient(saved: Saved<Self>, dy: FlexTensor) -> FlexTensor {
        let [x, weight] = [saved.x, saved.weight].map(contiguous);
        let dy = contiguous(dy);
        let shape = dims::<2>(&x);
        let taps = Taps {
            weight: floats(&weight),
            channels: shape[1],
            positions: &saved.positions,
        };
        with_number!(x.dtype(), T => {
            tensor(cpu::gradient::<T>(numbers(&x), numbers(&dy), taps), shape)
        })
    }
}

#[derive(Debug)]
struct ConvBackward;

impl<B: ConvGradients> Backward<B, 1> for ConvBackward {
    type State = Saved<B>;

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let dy = gradients.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            gradients.register::<B>(parent.id, B::convolved_gradient(ops.state, dy));
        }
    }
}

impl<B: ConvGradients, C: CheckpointStrategy> ConvOps for Autodiff<B, C> {
    fn convolved(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        positions: Arc<[u32]>,
    ) -> FloatTensor<Self> {
        let prepared = ConvBackward
            .prepare::<C>([x.node()])
            .compute_bound()
            .stateful();
        let (x, weight) = (x.into_primitive(), weight.into_primitive());
        let y = B::convolved(x.clone(), weight.clone(), positions.clone());
        let saved = Saved {
            x,
            weight,
            positions,
        };
        match prepared {
            OpsKind::Tracked(prep) => prep.finish(saved, y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}
