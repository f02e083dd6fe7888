//! Row selection as an operation of backends, with its backward pass and its CPU implementation.
//!
//! Both passes gather rows by a list of source rows; positions without a source are zero.

use std::mem::MaybeUninit;

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, TensorMetadata, backend_extension};

use super::{RowIndices, Sources};
use crate::cpu::buffer::{contiguous, dims, numbers, tensor};
use crate::cpu::number::{Number, with_element_type};
use crate::cpu::rows::write_rows;
use crate::with_backward::with_backward;

/// Operation that a backend implements itself.
#[backend_extension(Autodiff, Flex, Cube: cfg(feature = "cube"))]
pub(crate) trait SelectOps: Backend {
    /// Same contract as [`super::select_rows`].
    fn select_rows_of(x: FloatTensor<Self>, rows: RowIndices) -> FloatTensor<Self>;
}

/// Gather operation of both passes, on tensors that are not part of an autodiff graph.
pub(crate) trait GatherOps: SelectOps {
    /// Gathers rows of `x` by their source.
    fn gather_rows(x: FloatTensor<Self>, sources: Sources) -> FloatTensor<Self>;
}

impl SelectOps for Flex {
    fn select_rows_of(x: FlexTensor, rows: RowIndices) -> FlexTensor {
        Self::gather_rows(x, rows.sources())
    }
}

impl GatherOps for Flex {
    fn gather_rows(x: FlexTensor, sources: Sources) -> FlexTensor {
        let x = contiguous(x);
        let [_, d] = dims(&x);
        with_element_type!(x.dtype(), T => {
            let x_numbers = numbers::<T>(&x);
            // SAFETY: each row is written.
            let selected = unsafe {
                write_rows([sources.len(), d], |rows, to| {
                    for (&source, to) in sources[rows].iter().zip(to.chunks_exact_mut(d.max(1))) {
                        if source == 0 {
                            to.fill(MaybeUninit::new(T::narrow(0.0)));
                        } else {
                            to.write_copy_of_slice(&x_numbers[(source as usize - 1) * d..][..d]);
                        }
                    }
                })
            };
            tensor::<T, 2>(selected, [sources.len(), d])
        })
    }
}

impl<B: GatherOps, C: CheckpointStrategy> SelectOps for Autodiff<B, C> {
    fn select_rows_of(x: FloatTensor<Self>, rows: RowIndices) -> FloatTensor<Self> {
        let inputs = [x.node()];
        let x = x.into_primitive();
        let [n, _] = x.shape().dims();
        let sources = rows.gradient_sources(n);
        let y = B::select_rows_of(x, rows);
        with_backward::<B, C, _, _>(inputs, y, move |dy, _| {
            crate::operation!("select_rows backward");
            [Some(B::gather_rows(dy, sources))]
        })
    }
}
