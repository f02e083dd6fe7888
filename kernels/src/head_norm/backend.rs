//! The norm of spans as an operation of backends, with its backward pass and its CPU
//! implementation.

use std::sync::Arc;

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, backend_extension};

use super::cpu::{self, Spans};
use crate::cpu::buffer::{contiguous, dims, floats, numbers, tensor};
use crate::cpu::number::with_element_type;
use crate::with_backward::with_backward;

/// Operation that a backend implements itself.
#[backend_extension(Autodiff, Flex, Cube: cfg(feature = "cube"))]
pub(crate) trait HeadNormOps: Backend {
    /// Same contract as [`super::head_norm`].
    fn norm_spans(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        spans: Arc<[usize]>,
        eps: f32,
    ) -> FloatTensor<Self>;
}

/// The backward pass, on tensors that are not part of an autodiff graph.
pub(crate) trait HeadNormGradients: HeadNormOps {
    /// Gradient of `x`, in the dtype of `dy`.
    fn norm_spans_gradient(saved: Saved<Self>, dy: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// Saved state of the backward pass.
#[derive(Debug, Clone)]
pub(crate) struct Saved<B: Backend> {
    pub(super) x: FloatTensor<B>,
    pub(super) weight: FloatTensor<B>,
    pub(super) spans: Arc<[usize]>,
    pub(super) eps: f32,
}

impl HeadNormOps for Flex {
    fn norm_spans(x: FlexTensor, weight: FlexTensor, spans: Arc<[usize]>, eps: f32) -> FlexTensor {
        let [x, weight] = [x, weight].map(contiguous);
        let shape @ [_, heads, c] = dims::<3>(&x);
        let norm = Spans {
            weight: floats(&weight),
            spans: &spans,
            eps,
        };
        with_element_type!(x.dtype(), T => tensor(cpu::forward::<T>(numbers(&x), heads * c, norm), shape))
    }
}

impl HeadNormGradients for Flex {
    fn norm_spans_gradient(saved: Saved<Self>, dy: FlexTensor) -> FlexTensor {
        let [x, weight] = [saved.x, saved.weight].map(contiguous);
        let [_, heads, c] = dims::<3>(&x);
        let norm = Spans {
            weight: floats(&weight),
            spans: &saved.spans,
            eps: saved.eps,
        };
        with_element_type!(x.dtype(), T => cpu::to_gradient::<T>(dy, numbers(&x), heads * c, norm))
    }
}

impl<B: HeadNormGradients, C: CheckpointStrategy> HeadNormOps for Autodiff<B, C> {
    fn norm_spans(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        spans: Arc<[usize]>,
        eps: f32,
    ) -> FloatTensor<Self> {
        let inputs = [x.node()];
        let (x, weight) = (x.into_primitive(), weight.into_primitive());
        let y = B::norm_spans(x.clone(), weight.clone(), spans.clone(), eps);
        let saved = Saved {
            x,
            weight,
            spans,
            eps,
        };
        with_backward::<B, C, _, _>(inputs, y, move |dy, _| {
            crate::operation!("head_norm backward");
            [Some(B::norm_spans_gradient(saved, dy))]
        })
    }
}
