//! A linear-attention layer as an operation of the CPU backend, with its backward pass.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType, Flex, backend_extension};

use super::cpu::{self, Layer};
use crate::cpu::buffer::{contiguous, floats, numbers, tensor};
use crate::cpu::number::with_element_type;
use crate::gated_norm::cpu::Norm;
use crate::with_backward::with_backward;
use crate::{DeltaHeads, Documents};

/// Arguments other than tensors.
#[derive(Debug, Clone)]
pub(crate) struct Arguments {
    pub(crate) heads: DeltaHeads,
    /// Epsilon of the norm.
    pub(crate) eps: f32,
    pub(crate) documents: Documents,
}

/// Operation that a backend implements itself.
#[backend_extension(Autodiff, Flex)]
pub(crate) trait DeltaNetOps: Backend {
    /// Same contract as [`super::gated_delta_net`].
    fn delta_net(x: FloatTensor<Self>, #[extension_type] frozen: Frozen<Self>)
    -> FloatTensor<Self>;
}

/// Both passes, on tensors that are not part of an autodiff graph.
pub(crate) trait DeltaNetPasses: DeltaNetOps {
    /// The result and the outputs of the states, `[n, value heads, value_dim]` each.
    fn delta_net_forward(x: FloatTensor<Self>, frozen: &Frozen<Self>) -> [FloatTensor<Self>; 2];

    /// The gradient of `x`.
    fn delta_net_backward(
        x: FloatTensor<Self>,
        read: FloatTensor<Self>,
        frozen: Frozen<Self>,
        dy: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

/// Everything but the input: tensors without gradients, and the other arguments.
#[derive(Debug, Clone, ExtensionType)]
pub(crate) struct Frozen<B: Backend> {
    /// Transposed convolution weights, `[kernel, width]`.
    pub(super) conv: FloatTensor<B>,
    pub(super) rate: FloatTensor<B>,
    pub(super) step_bias: FloatTensor<B>,
    pub(super) norm: FloatTensor<B>,
    pub(super) arguments: Arguments,
}

impl Frozen<Flex> {
    fn contiguous(&self) -> Self {
        let to_contiguous = |x: &FlexTensor| contiguous(x.clone());
        Self {
            conv: to_contiguous(&self.conv),
            rate: to_contiguous(&self.rate),
            step_bias: to_contiguous(&self.step_bias),
            norm: to_contiguous(&self.norm),
            arguments: self.arguments.clone(),
        }
    }

    /// From tensors that went through [`Frozen::contiguous`].
    fn layer(&self) -> Layer<'_> {
        Layer {
            heads: self.arguments.heads,
            conv: floats(&self.conv),
            rate: floats(&self.rate),
            step_bias: floats(&self.step_bias),
            norm: Norm {
                weight: floats(&self.norm),
                eps: self.arguments.eps,
            },
            documents: &self.arguments.documents,
        }
    }

    fn shape(&self) -> [usize; 3] {
        let Arguments {
            heads, documents, ..
        } = &self.arguments;
        [documents.n_tokens(), heads.value_heads, heads.value_dim]
    }
}

impl DeltaNetOps for Flex {
    fn delta_net(x: FlexTensor, frozen: Frozen<Self>) -> FlexTensor {
        let [y, _] = Self::delta_net_forward(x, &frozen);
        y
    }
}

impl DeltaNetPasses for Flex {
    fn delta_net_forward(x: FlexTensor, frozen: &Frozen<Self>) -> [FlexTensor; 2] {
        let (x, frozen) = (contiguous(x), frozen.contiguous());
        with_element_type!(x.dtype(), T => {
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
        let shape = [
            frozen.shape()[0],
            frozen.arguments.heads.columns().iter().sum(),
        ];
        with_element_type!(x.dtype(), T => {
            let [x, read, dy] = [&x, &read, &dy].map(numbers::<T>);
            tensor(cpu::gradient(x, read, dy, frozen.layer()), shape)
        })
    }
}

impl<B: DeltaNetPasses, C: CheckpointStrategy> DeltaNetOps for Autodiff<B, C> {
    fn delta_net(x: FloatTensor<Self>, frozen: Frozen<Self>) -> FloatTensor<Self> {
        let inputs = [x.node()];
        let x = x.into_primitive();
        let frozen = Frozen::<B> {
            conv: frozen.conv.into_primitive(),
            rate: frozen.rate.into_primitive(),
            step_bias: frozen.step_bias.into_primitive(),
            norm: frozen.norm.into_primitive(),
            arguments: frozen.arguments,
        };
        let [y, read] = B::delta_net_forward(x.clone(), &frozen);
        with_backward::<B, C, _, _>(inputs, y, move |dy, _| {
            crate::operation!("gated_delta_net backward");
            [Some(B::delta_net_backward(x, read, frozen, dy))]
        })
    }
}
