//! Layer norm as an operation of the CPU backend, with its backward pass.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, backend_extension};

use super::cpu;
use crate::cpu::buffer::{contiguous, dims, floats, tensor};

/// What backends implement themselves.
#[backend_extension(Autodiff, Flex)]
pub(crate) trait LayerNormOps: Backend {
    /// The contract is [`super::layer_norm`]'s.
    fn trained_layer_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        eps: f32,
    ) -> FloatTensor<Self>;
}

/// The backward pass, on tensors without a graph.
pub(crate) trait LayerNormGradients: LayerNormOps {
    /// Gradients of `x`, weight and bias.
    fn layer_norm_gradients(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        eps: f32,
        dy: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 3];
}

impl LayerNormOps for Flex {
    fn trained_layer_norm(
        x: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        eps: f32,
    ) -> FlexTensor {
        let [x, weight, bias] = [x, weight, bias].map(contiguous);
        let y = cpu::layer_norm(floats(&x), floats(&weight), floats(&bias), eps);
        tensor(y, dims::<2>(&x))
    }
}

impl LayerNormGradients for Flex {
    fn layer_norm_gradients(
        x: FlexTensor,
        weight: FlexTensor,
        eps: f32,
        dy: FlexTensor,
    ) -> [FlexTensor; 3] {
        let [x, weight, dy] = [x, weight, dy].map(contiguous);
        let [dx, d_weight, d_bias] =
            cpu::layer_norm_gradients(floats(&x), floats(&weight), eps, floats(&dy));
        let [n, d] = dims(&x);
        [
            tensor(dx, [n, d]),
            tensor(d_weight, [d]),
            tensor(d_bias, [d]),
        ]
    }
}

#[derive(Debug)]
struct LayerNormBackward;

impl<B: LayerNormGradients> Backward<B, 3> for LayerNormBackward {
    /// `x`, the weight and epsilon.
    type State = (FloatTensor<B>, FloatTensor<B>, f32);

    fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let dy = gradients.consume::<B>(&ops.node);
        let (x, weight, eps) = ops.state;
        let found = B::layer_norm_gradients(x, weight, eps, dy);
        for (node, gradient) in ops.parents.into_iter().zip(found) {
            if let Some(node) = node {
                gradients.register::<B>(node.id, gradient);
            }
        }
    }
}

impl<B: LayerNormGradients, C: CheckpointStrategy> LayerNormOps for Autodiff<B, C> {
    fn trained_layer_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        eps: f32,
    ) -> FloatTensor<Self> {
        let prepared = LayerNormBackward
            .prepare::<C>([x.node(), weight.node(), bias.node()])
            .compute_bound()
            .stateful();
        let [x, weight, bias] = [x, weight, bias].map(|tensor| tensor.into_primitive());
        let y = B::trained_layer_norm(x.clone(), weight.clone(), bias, eps);
        match prepared {
            OpsKind::Tracked(prep) => prep.finish((x, weight, eps), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}
