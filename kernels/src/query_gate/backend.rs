//! Query gates as operations of the CPU backend, with their backward passes.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, backend_extension};

use super::{GatedHeads, cpu};
use crate::cpu::buffer::{contiguous, dims, numbers, tensor};
use crate::cpu::number::with_element_type;
use crate::with_backward::with_backward;

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

impl<B: QueryGateGradients, C: CheckpointStrategy> QueryGateOps for Autodiff<B, C> {
    fn heads_without_gates(x: FloatTensor<Self>, heads: GatedHeads) -> FloatTensor<Self> {
        let inputs = [x.node()];
        let y = B::heads_without_gates(x.into_primitive(), heads);
        with_backward::<B, C, _, _>(inputs, y, move |dy, _| {
            crate::operation!("query_gate backward");
            [Some(B::heads_without_gates_gradient(dy, heads))]
        })
    }

    fn heads_gated(
        attended: FloatTensor<Self>,
        x: FloatTensor<Self>,
        heads: GatedHeads,
    ) -> FloatTensor<Self> {
        let inputs = [attended.node(), x.node()];
        let (attended, x) = (attended.into_primitive(), x.into_primitive());
        let y = B::heads_gated(attended.clone(), x.clone(), heads);
        with_backward::<B, C, _, _>(inputs, y, move |dy, _| {
            crate::operation!("query_gate backward");
            B::heads_gated_gradients(attended, x, dy, heads).map(Some)
        })
    }
}
