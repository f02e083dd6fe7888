//! Backward passes of the fused operations, over any backend that has their pieces.
//!
//! Frozen parents (weights) register nothing, whether they are tracked or not. Gradients are
//! tensors without a graph: there is no second order.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;

use super::{Attention, KernelGradients, KernelOps};
use crate::attention::{Causality, Documents};
use crate::rope::cpu::Turn;

#[derive(Debug)]
struct RmsNormBackward;

impl<B: KernelGradients> Backward<B, 1> for RmsNormBackward {
    type State = (FloatTensor<B>, FloatTensor<B>, f32);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let dy = gradients.consume::<B>(&ops.node);
        let (x, weight, eps) = ops.state;
        if let [Some(parent)] = ops.parents {
            gradients.register::<B>(parent.id, B::rms_norm_dx(x, weight, eps, dy));
        }
    }
}

#[derive(Debug)]
struct RotateBackward;

impl<B: KernelGradients> Backward<B, 1> for RotateBackward {
    type State = (FloatTensor<B>, FloatTensor<B>, Turn);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let dy = gradients.consume::<B>(&ops.node);
        let (cos, sin, turn) = ops.state;
        if let [Some(parent)] = ops.parents {
            gradients.register::<B>(parent.id, B::rotate(dy, cos, sin, turn.reversed()));
        }
    }
}

/// Parents: gate, up.
#[derive(Debug)]
struct GatedSiluBackward;

impl<B: KernelGradients> Backward<B, 2> for GatedSiluBackward {
    type State = [FloatTensor<B>; 2];

    fn backward(self, ops: Ops<Self::State, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let dy = gradients.consume::<B>(&ops.node);
        let [gate, up] = ops.state;
        register::<B, 2>(
            gradients,
            ops.parents.map(|p| p.map(|p| p.id)),
            B::gated_silu_gradients(gate, up, dy),
        );
    }
}

/// Parents: queries, keys, values.
#[derive(Debug)]
struct AttentionBackward;

impl<B: KernelGradients> Backward<B, 3> for AttentionBackward {
    type State = Attention<B>;

    fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let dy = gradients.consume::<B>(&ops.node);
        register::<B, 3>(
            gradients,
            ops.parents.map(|p| p.map(|p| p.id)),
            B::attention_gradients(ops.state, dy),
        );
    }
}

/// Hands each tracked parent its gradient.
fn register<B: KernelGradients, const N: usize>(
    gradients: &mut Gradients,
    parents: [Option<NodeId>; N],
    values: [FloatTensor<B>; N],
) {
    for (parent, value) in parents.into_iter().zip(values) {
        if let Some(parent) = parent {
            gradients.register::<B>(parent, value);
        }
    }
}

impl<B: KernelGradients, C: CheckpointStrategy> KernelOps for Autodiff<B, C> {
    fn frozen_rms_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        eps: f32,
    ) -> FloatTensor<Self> {
        let prepared = RmsNormBackward
            .prepare::<C>([x.node()])
            .compute_bound()
            .stateful();
        let (x, weight) = (x.into_primitive(), weight.into_primitive());
        let y = B::frozen_rms_norm(x.clone(), weight.clone(), eps);
        match prepared {
            OpsKind::Tracked(prep) => prep.finish((x, weight, eps), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn rotate(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        turn: Turn,
    ) -> FloatTensor<Self> {
        let prepared = RotateBackward
            .prepare::<C>([x.node()])
            .compute_bound()
            .stateful();
        let (cos, sin) = (cos.into_primitive(), sin.into_primitive());
        let y = B::rotate(x.into_primitive(), cos.clone(), sin.clone(), turn);
        match prepared {
            OpsKind::Tracked(prep) => prep.finish((cos, sin, turn), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn gated_silu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        let nodes = [gate.node(), up.node()];
        let prepared = GatedSiluBackward
            .prepare::<C>(nodes)
            .compute_bound()
            .stateful();
        let (gate, up) = (gate.into_primitive(), up.into_primitive());
        let y = B::gated_silu(gate.clone(), up.clone());
        match prepared {
            OpsKind::Tracked(prep) => prep.finish([gate, up], y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn document_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        documents: Documents,
        causality: Causality,
    ) -> FloatTensor<Self> {
        let nodes = [q.node(), k.node(), v.node()];
        let prepared = AttentionBackward
            .prepare::<C>(nodes)
            .compute_bound()
            .stateful();
        let inputs = [q.into_primitive(), k.into_primitive(), v.into_primitive()];
        let attention = B::attention_forward(inputs, documents, causality);
        let out = attention.out.clone();
        match prepared {
            OpsKind::Tracked(prep) => prep.finish(attention, out),
            OpsKind::UnTracked(prep) => prep.finish(out),
        }
    }
}
