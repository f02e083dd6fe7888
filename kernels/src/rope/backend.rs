//! Rotary embedding for tensors in CPU memory, and its backward pass for any backend.

use burn::backend::Flex;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;

use super::cpu::{Tables, rotate};
use super::{Direction, RopeOps, Turn};
use crate::cpu::buffer::{contiguous, dims, floats};
use crate::cpu::number::with_element_type;

impl RopeOps for Flex {
    fn rotate(x: FlexTensor, cos: FlexTensor, sin: FlexTensor, turn: Turn) -> FlexTensor {
        let (cos, sin) = (contiguous(cos), contiguous(sin));
        let [_, heads, head] = dims(&x);
        let [_, _, half] = dims(&cos);
        let tables = Tables {
            cos: floats(&cos),
            sin: floats(&sin),
            half,
            head,
        };
        with_element_type!(x.dtype(), T => rotate::<T>(x, heads, tables, turn))
    }
}

#[derive(Debug)]
struct RopeBackward;

impl<B: RopeOps> Backward<B, 1> for RopeBackward {
    /// Cosines, sines, and the rotation of the gradient.
    type State = (FloatTensor<B>, FloatTensor<B>, Turn);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        crate::operation!("rope backward");
        let dy = gradients.consume::<B>(&ops.node);
        let (cos, sin, turn) = ops.state;
        if let [Some(parent)] = ops.parents {
            gradients.register::<B>(parent.id, B::rotate(dy, cos, sin, turn));
        }
    }
}

impl<B: RopeOps, C: CheckpointStrategy> RopeOps for Autodiff<B, C> {
    fn rotate(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        turn: Turn,
    ) -> FloatTensor<Self> {
        let prepared = RopeBackward
            .prepare::<C>([x.node()])
            .compute_bound()
            .stateful();
        let (cos, sin) = (cos.into_primitive(), sin.into_primitive());
        let y = B::rotate(x.into_primitive(), cos.clone(), sin.clone(), turn);
        let back = Turn {
            direction: match turn.direction {
                Direction::Forward => Direction::Back,
                Direction::Back => Direction::Forward,
            },
            ..turn
        };
        match prepared {
            OpsKind::Tracked(prep) => prep.finish((cos, sin, back), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}
