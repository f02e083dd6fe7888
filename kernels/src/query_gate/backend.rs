//! Query gates as operations of the CPU backend, with their backward passes.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, backend_extension};

use super::{GatedHeads, cpu};
use crate::cpu::buffer::{contiguous, dims, numbers, tensor};
use crate::cpu::number::with_element_type;

/// Operations that a backend implements itself.
#[backend_extension(Autodiff, Flex)]
pub(crate) trait QueryGateOps: Backend {
    /// Same contract as [`super::without_gates`].
    fn heads_without_gates(x: FloatTensor<Self>, heads: GatedHeads) -> FloatTensor<Self>;

    /// Same contract as [`super::gated`].
    fn heads_gated(
        attended: FloatTensor<Self>,
        x: FloatTensor<Self>,
        heads: GatedHeads,
    ) -> FloatTensor<Self>;
}

/// The backward passes, on tensors that are not part of an autodiff graph.
pub(crate) trait QueryGateGradients: QueryGateOps {
    /// The gradient of all heads.
    fn heads_without_gates_gradient(dy: FloatTensor<Self>, heads: GatedHeads) -> FloatTensor<Self>;

    /// Gradients of the attention output and of all heads.
    fn heads_gated_gradients(
        attended: FloatTensor<Self>,
        x: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        heads: GatedHeads,
    ) -> [FloatTensor<Self>; 2];
}

impl QueryGateOps for Flex {
    fn heads_without_gates(x: FlexTensor, heads: GatedHeads) -> FlexTensor {
        let x = contiguous(x);
        let shape = [
            dims::<2>(&x)[0],
            heads.queries + heads.key_values,
            heads.dim,
        ];
        with_element_type!(x.dtype(), T => {
            tensor(cpu::without_gates::<T>(numbers(&x), heads), shape)
        })
    }

    fn heads_gated(attended: FlexTensor, x: FlexTensor, heads: GatedHeads) -> FlexTensor {
        let [attended, x] = [attended, x].map(contiguous);
        let shape = dims::<3>(&attended);
        with_element_type!(x.dtype(), T => {
            tensor(cpu::gated::<T>(numbers(&attended), numbers(&x), heads), shape)
        })
    }
}

impl QueryGateGradients for Flex {
    fn heads_without_gates_gradient(dy: FlexTensor, heads: GatedHeads) -> FlexTensor {
        let dy = contiguous(dy);
        let shape = [dims::<3>(&dy)[0], heads.width()];
        with_element_type!(dy.dtype(), T => {
            tensor(cpu::gradient_without_gates::<T>(numbers(&dy), heads), shape)
        })
    }

    fn heads_gated_gradients(
        attended: FlexTensor,
        x: FlexTensor,
        dy: FlexTensor,
        heads: GatedHeads,
    ) -> [FlexTensor; 2] {
        let [attended, x, dy] = [attended, x, dy].map(contiguous);
        let (attended_dims, x_dims) = (dims::<3>(&attended), dims::<2>(&x));
        with_element_type!(x.dtype(), T => {
            let inputs = [&attended, &x, &dy].map(numbers::<T>);
            let [d_attended, dx] = cpu::gated_gradients(inputs[0], inputs[1], inputs[2], heads);
            [tensor(d_attended, attended_dims), tensor(dx, x_dims)]
        })
    }
}

#[derive(Debug)]
struct WithoutGatesBackward;

impl<B: QueryGateGradients> Backward<B, 1> for WithoutGatesBackward {
    type State = GatedHeads;

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        crate::operation!("query_gate backward");
        let dy = gradients.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            let dx = B::heads_without_gates_gradient(dy, ops.state);
            gradients.register::<B>(parent.id, dx);
        }
    }
}

#[derive(Debug)]
struct GatedBackward;

impl<B: QueryGateGradients> Backward<B, 2> for GatedBackward {
    /// The attention output, all heads, and their layout.
    type State = (FloatTensor<B>, FloatTensor<B>, GatedHeads);

    fn backward(self, ops: Ops<Self::State, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
        crate::operation!("query_gate backward");
        let dy = gradients.consume::<B>(&ops.node);
        let (attended, x, heads) = ops.state;
        let input_gradients = B::heads_gated_gradients(attended, x, dy, heads);
        for (parent, gradient) in ops.parents.into_iter().zip(input_gradients) {
            if let Some(parent) = parent {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}

impl<B: QueryGateGradients, C: CheckpointStrategy> QueryGateOps for Autodiff<B, C> {
    fn heads_without_gates(x: FloatTensor<Self>, heads: GatedHeads) -> FloatTensor<Self> {
        let prepared = WithoutGatesBackward
            .prepare::<C>([x.node()])
            .compute_bound()
            .stateful();
        let y = B::heads_without_gates(x.into_primitive(), heads);
        match prepared {
            OpsKind::Tracked(prep) => prep.finish(heads, y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn heads_gated(
        attended: FloatTensor<Self>,
        x: FloatTensor<Self>,
        heads: GatedHeads,
    ) -> FloatTensor<Self> {
        let prepared = GatedBackward
            .prepare::<C>([attended.node(), x.node()])
            .compute_bound()
            .stateful();
        let (attended, x) = (attended.into_primitive(), x.into_primitive());
        let y = B::heads_gated(attended.clone(), x.clone(), heads);
        match prepared {
            OpsKind::Tracked(prep) => prep.finish((attended, x, heads), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}
