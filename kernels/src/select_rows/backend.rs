//! Some rows as an operation of backends, with its backward pass, and for the CPU.
//!
//! Both passes put rows somewhere by a list of where each comes from; a place without a row is zero.

use std::mem::MaybeUninit;

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, TensorMetadata, backend_extension};

use super::{RowNumbers, Sources};
use crate::cpu::buffer::{contiguous, dims, numbers, tensor};
use crate::cpu::number::{Number, with_number};
use crate::cpu::rows::write_rows;

/// What backends implement themselves.
#[backend_extension(Autodiff, Flex, Cube: cfg(all(feature = "cube", not(feature = "fusion"))))]
pub(crate) trait SelectOps: Backend {
    /// The contract is [`super::select_rows`]'s.
    fn rows_selected(x: FloatTensor<Self>, rows: RowNumbers) -> FloatTensor<Self>;
}

/// The work of both passes, on tensors without a graph.
pub(crate) trait RowsTaken: SelectOps {
    /// Rows of `x` by where they come from.
    fn rows_taken(x: FloatTensor<Self>, sources: Sources) -> FloatTensor<Self>;
}

impl SelectOps for Flex {
    fn rows_selected(x: FlexTensor, rows: RowNumbers) -> FlexTensor {
        Self::rows_taken(x, rows.sources())
    }
}

impl RowsTaken for Flex {
    fn rows_taken(x: FlexTensor, sources: Sources) -> FlexTensor {
        let x = contiguous(x);
        let [_, d] = dims(&x);
        with_number!(x.dtype(), T => {
            let given = numbers::<T>(&x);
            // SAFETY: each row is written.
            let taken = unsafe {
                write_rows([sources.len(), d], |rows, to| {
                    for (&source, to) in sources[rows].iter().zip(to.chunks_exact_mut(d.max(1))) {
                        if source == 0 {
                            to.fill(MaybeUninit::new(T::narrow(0.0)));
                        } else {
                            to.write_copy_of_slice(&given[(source as usize - 1) * d..][..d]);
                        }
                    }
                })
            };
            tensor::<T, 2>(taken, [sources.len(), d])
        })
    }
}

#[derive(Debug)]
struct SelectBackward;

impl<B: RowsTaken> Backward<B, 1> for SelectBackward {
    /// Where rows of the gradient come from.
    type State = Sources;

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        crate::operation!("select_rows backward");
        let dy = gradients.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            gradients.register::<B>(parent.id, B::rows_taken(dy, ops.state));
        }
    }
}

impl<B: RowsTaken, C: CheckpointStrategy> SelectOps for Autodiff<B, C> {
    fn rows_selected(x: FloatTensor<Self>, rows: RowNumbers) -> FloatTensor<Self> {
        let prepared = SelectBackward
            .prepare::<C>([x.node()])
            .compute_bound()
            .stateful();
        let x = x.into_primitive();
        let [n, _] = x.shape().dims();
        let sources = rows.sources_back(n);
        let y = B::rows_selected(x, rows);
        match prepared {
            OpsKind::Tracked(prep) => prep.finish(sources, y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}
