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

use super::{Adapted, KernelGradients, KernelOps};

#[derive(Debug)]
struct LinearBackward;

impl<B: KernelGradients> Backward<B, 1> for LinearBackward {
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let dy = gradients.consume::<B>(&ops.node);
        let [x] = ops.parents;
        if let Some(x) = x {
            gradients.register::<B>(x.id, B::linear_dx(dy, ops.state, None));
        }
    }
}

/// Parents: x, a, b.
#[derive(Debug)]
struct LoraBackward;

impl<B: KernelGradients> Backward<B, 3> for LoraBackward {
    type State = (FloatTensor<B>, Adapted<B>);

    fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let dy = gradients.consume::<B>(&ops.node);
        let (weight, saved) = ops.state;
        let factor_a = saved.a.clone();
        let [d_low, d_a, d_b] = B::factor_gradients(saved, dy.clone());
        let [x, a, b] = ops.parents;
        register::<B, 2>(gradients, [a, b].map(|p| p.map(|p| p.id)), [d_a, d_b]);
        if let Some(x) = x {
            gradients.register::<B>(x.id, B::linear_dx(dy, weight, Some((d_low, factor_a))));
        }
    }
}

/// Parents: x, the adapter's input, a, b.
#[derive(Debug)]
struct LoraDroppedBackward;

impl<B: KernelGradients> Backward<B, 4> for LoraDroppedBackward {
    type State = (FloatTensor<B>, Adapted<B>);

    fn backward(self, ops: Ops<Self::State, 4>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let dy = gradients.consume::<B>(&ops.node);
        let (weight, saved) = ops.state;
        let factor_a = saved.a.clone();
        let [d_low, d_a, d_b] = B::factor_gradients(saved, dy.clone());
        let [x, input, a, b] = ops.parents;
        register::<B, 2>(gradients, [a, b].map(|p| p.map(|p| p.id)), [d_a, d_b]);
        if let Some(input) = input {
            gradients.register::<B>(input.id, B::linear_dx(d_low, factor_a, None));
        }
        if let Some(x) = x {
            gradients.register::<B>(x.id, B::linear_dx(dy, weight, None));
        }
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
    fn frozen_linear(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        let weight = weight.into_primitive();
        match LinearBackward
            .prepare::<C>([x.node()])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => {
                let y = B::frozen_linear(x.into_primitive(), weight.clone());
                prep.finish(weight, y)
            }
            OpsKind::UnTracked(prep) => prep.finish(B::frozen_linear(x.into_primitive(), weight)),
        }
    }

    fn lora_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        scaling: f32,
    ) -> FloatTensor<Self> {
        let weight = weight.into_primitive();
        let prepared = LoraBackward
            .prepare::<C>([x.node(), a.node(), b.node()])
            .compute_bound()
            .stateful();
        let (x, a, b) = (x.into_primitive(), a.into_primitive(), b.into_primitive());
        match prepared {
            OpsKind::Tracked(prep) => {
                let low = B::low_rank(x.clone(), a.clone(), scaling);
                let y = B::adapted(x.clone(), weight.clone(), low.clone(), b.clone());
                prep.finish(
                    (
                        weight,
                        Adapted {
                            input: x,
                            low,
                            a,
                            b,
                            scaling,
                        },
                    ),
                    y,
                )
            }
            OpsKind::UnTracked(prep) => prep.finish(B::lora_linear(x, weight, a, b, scaling)),
        }
    }

    fn lora_linear_dropped(
        x: FloatTensor<Self>,
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        scaling: f32,
    ) -> FloatTensor<Self> {
        let weight = weight.into_primitive();
        let nodes = [x.node(), input.node(), a.node(), b.node()];
        let prepared = LoraDroppedBackward
            .prepare::<C>(nodes)
            .compute_bound()
            .stateful();
        let (x, input) = (x.into_primitive(), input.into_primitive());
        let (a, b) = (a.into_primitive(), b.into_primitive());
        match prepared {
            OpsKind::Tracked(prep) => {
                let low = B::low_rank(input.clone(), a.clone(), scaling);
                let y = B::adapted(x, weight.clone(), low.clone(), b.clone());
                prep.finish(
                    (
                        weight,
                        Adapted {
                            input,
                            low,
                            a,
                            b,
                            scaling,
                        },
                    ),
                    y,
                )
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(B::lora_linear_dropped(x, input, weight, a, b, scaling))
            }
        }
    }
}
