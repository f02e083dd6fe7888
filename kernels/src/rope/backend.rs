//! Rotary embedding for tensors in CPU memory, and its backward pass for any backend.

use burn::backend::Flex;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;

use super::cpu::{Tables, rotate};
use super::{Direction, RopeOps, Turn};
use crate::cpu::buffer::{contiguous, dims, floats};
use crate::cpu::number::with_element_type;
use crate::with_backward::with_backward;

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

impl<B: RopeOps, C: CheckpointStrategy> RopeOps for Autodiff<B, C> {
    fn rotate(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        turn: Turn,
    ) -> FloatTensor<Self> {
        let inputs = [x.node()];
        let (cos, sin) = (cos.into_primitive(), sin.into_primitive());
        let y = B::rotate(x.into_primitive(), cos.clone(), sin.clone(), turn);
        let back = Turn {
            direction: match turn.direction {
                Direction::Forward => Direction::Back,
                Direction::Back => Direction::Forward,
            },
            ..turn
        };
        with_backward::<B, C, _, _>(inputs, y, move |dy, _| {
            crate::operation!("rope backward");
            [Some(B::rotate(dy, cos, sin, back))]
        })
    }
}
