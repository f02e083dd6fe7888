//! A layer of linear attention as an operation of the CPU backend, with its backward pass.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, backend_extension};

use super::cpu::{self, Layer};
use crate::cpu::buffer::{contiguous, floats, numbers, tensor};
use crate::cpu::number::with_number;
use crate::gated_norm::cpu::Norm;
use crate::{DeltaHeads, Documents};

/// What is no tensor.
#[derive(Debug, Clone)]
pub(crate) struct Form {
    pub(crate) heads: DeltaHeads,
    /// Of the norm.
    pub(crate) eps: f32,
    pub(crate) documents: Documents,
}

/// What backends implement themselves.
#[backend_extension(Autodiff, Flex)]
pub(crate) trait DeltaNetOps: Backend {
    /// The contract is [`super::gated_delta_net`]'s, with the weights of the convolution turned,
    /// `[kernel, width]`.
    fn delta_net(
        x: FloatTensor<Self>,
        conv: FloatTensor<Self>,
        rate: FloatTensor<Self>,
        step_bias: FloatTensor<Self>,
        norm: FloatTensor<Self>,
        form: Form,
    ) -> FloatTensor<Self>;
}

/// Both passes, on tensors without a graph.
pub(crate) trait DeltaNetPasses: DeltaNetOps {
    /// What is given, and what was read of the states, `[n, value heads, value_dim]` each.
    fn delta_net_forward(x: FloatTensor<Self>, frozen: &Frozen<Self>) -> [FloatTensor<Self>; 2];

    /// The gradient of `x`.
    fn delta_net_backward(
        x: FloatTensor<Self>,
        read: FloatTensor<Self>,
        frozen: Frozen<Self>,
        dy: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

/// What is not differentiated.
#[derive(Debug, Clone)]
pub(crate) struct Frozen<B: Backend> {
    conv: FloatTensor<B>,
    rate: FloatTensor<B>,
    step_bias: FloatTensor<B>,
    norm: FloatTensor<B>,
    form: Form,
}

impl Frozen<Flex> {
    fn contiguous(&self) -> Self {
        let of = |x: &FlexTensor| contiguous(x.clone());
        Self {
            conv: of(&self.conv),
            rate: of(&self.rate),
            step_bias: of(&self.step_bias),
            norm: of(&self.norm),
            form: self.form.clone(),
        }
    }

    /// Of tensors that went through [`Frozen::contiguous`].
    fn layer(&self) -> Layer<'_> {
        Layer {
            heads: self.form.heads,
            conv: floats(&self.conv),
            rate: floats(&self.rate),
            step_bias: floats(&self.step_bias),
            norm: Norm {
                weight: floats(&self.norm),
                eps: self.form.eps,
            },
            documents: &self.form.documents,
        }
    }

    fn shape(&self) -> [usize; 3] {
        let Form {
            heads, documents, ..
        } = &self.form;
        [documents.n_tokens(), heads.value_heads, heads.value_dim]
    }
}

impl DeltaNetOps for Flex {
    fn delta_net(
        x: FlexTensor,
        conv: FlexTensor,
        rate: FlexTensor,
        step_bias: FlexTensor,
        norm: FlexTensor,
        form: Form,
    ) -> FlexTensor {
        let frozen = Frozen {
            conv,
            rate,
            step_bias,
            norm,
            form,
        };
        let [y, _] = Self::delta_net_forward(x, &frozen);
        y
    }
}

impl DeltaNetPasses for Flex {
    fn delta_net_forward(x: FlexTensor, frozen: &Frozen<Self>) -> [FlexTensor; 2] {
        let (x, frozen) = (contiguous(x), frozen.contiguous());
        with_number!(x.dtype(), T => {
            cpu::forward::<T>(numbers(&x), frozen.layer()).map(|y| tensor(y, frozen.shape()))
        })
    }

    fn delta_net_backward(
        x: FlexTensor,
        read: FlexTensor,
        frozen: Frozen<Self>,
        dy: FlexTensor,
    ) -> FlexTensor {
        let [x, read, dy] = [x, read, dy].map(contiguous);
        let frozen = frozen.contiguous();
        let shape = [frozen.shape()[0], frozen.form.heads.columns().iter().sum()];
        with_number!(x.dtype(), T => {
            let [x, read, dy] = [&x, &read, &dy].map(numbers::<T>);
            tensor(cpu::gradient(x, read, dy, frozen.layer()), shape)
        })
    }
}

#[derive(Debug)]
struct DeltaNetBackward;

impl<B: DeltaNetPasses> Backward<B, 1> for DeltaNetBackward {
    /// What was given, what was read of the states, and the rest.
    type State = (FloatTensor<B>, FloatTensor<B>, Frozen<B>);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        crate::operation!("gated_delta_net backward");
        let dy = gradients.consume::<B>(&ops.node);
        let (x, read, frozen) = ops.state;
        if let [Some(parent)] = ops.parents {
            let dx = B::delta_net_backward(x, read, frozen, dy);
            gradients.register::<B>(parent.id, dx);
        }
    }
}

impl<B: DeltaNetPasses, C: CheckpointStrategy> DeltaNetOps for Autodiff<B, C> {
    fn delta_net(
        x: FloatTensor<Self>,
        conv: FloatTensor<Self>,
        rate: FloatTensor<Self>,
        step_bias: FloatTensor<Self>,
        norm: FloatTensor<Self>,
        form: Form,
    ) -> FloatTensor<Self> {
        let prepared = DeltaNetBackward
            .prepare::<C>([x.node()])
            .compute_bound()
            .stateful();
        let x = x.into_primitive();
        let frozen = Frozen::<B> {
            conv: conv.into_primitive(),
            rate: rate.into_primitive(),
            step_bias: step_bias.into_primitive(),
            norm: norm.into_primitive(),
            form,
        };
        let [y, read] = B::delta_net_forward(x.clone(), &frozen);
        match prepared {
            OpsKind::Tracked(prep) => prep.finish((x, read, frozen), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}
