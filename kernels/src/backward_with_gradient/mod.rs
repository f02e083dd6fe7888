//! Starts a backward pass at a tensor with a given gradient.
//!
//! `sum(y * dy)` has the same gradient, but costs a product, a sum and their gradients over all of
//! `y`.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::Tensor;

use crate::cpu::buffer;
use crate::cpu::pool::Buffer;

/// Back-propagates from `y` with the gradient `dy`; returns the gradients of its inputs.
///
/// # Shapes
///
/// - `y`: under autodiff, any shape; `dy`: the same shape and dtype, without autodiff
///
/// # Panics
///
/// If the shapes differ.
pub fn backward_with_gradient<const D: usize>(
    y: Tensor<D>,
    dy: Tensor<D>,
) -> burn::tensor::Gradients {
    assert_eq!(
        y.dims(),
        dy.dims(),
        "a gradient must have the shape of its tensor"
    );
    let begun = Dispatch::begin(y.into_dispatch(), dy.into_dispatch());
    Tensor::<1>::from_dispatch(begun).backward()
}

#[backend_extension(
    Autodiff,
    Flex,
    Cube: cfg(feature = "cube"),
)]
pub(crate) trait BackwardOps: Backend {
    /// Root of the pass: it passes `dy` to `y` and ignores the ones with which autodiff starts.
    fn begin(y: FloatTensor<Self>, dy: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// Shape of the root on a GPU: empty, because filling an empty tensor with ones needs no launch.
#[cfg(feature = "cube")]
const ROOT: [usize; 1] = [0];

impl BackwardOps for Flex {
    fn begin(_: FlexTensor, _: FlexTensor) -> FlexTensor {
        buffer::tensor(Buffer::repeated(0.0f32, 1), [1])
    }
}

#[cfg(feature = "cube")]
impl BackwardOps for burn_cubecl::CubeBackend {
    fn begin(
        y: burn_cubecl::tensor::CubeTensor,
        _: burn_cubecl::tensor::CubeTensor,
    ) -> burn_cubecl::tensor::CubeTensor {
        crate::cube::launch::output(&y, ROOT, burn::tensor::DType::F32)
    }
}

#[derive(Debug)]
struct Begin;

impl<B: Backend> Backward<B, 1> for Begin {
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let [y] = ops.parents;
        if let Some(y) = y {
            gradients.register::<B>(y.id, ops.state);
        }
    }
}

impl<B: BackwardOps, C: CheckpointStrategy> BackwardOps for Autodiff<B, C> {
    fn begin(y: FloatTensor<Self>, dy: FloatTensor<Self>) -> FloatTensor<Self> {
        let prepared = Begin.prepare::<C>([y.node()]).compute_bound().stateful();
        let dy = dy.into_primitive();
        let zero = B::begin(y.into_primitive(), dy.clone());
        match prepared {
            OpsKind::Tracked(prep) => prep.finish(dy, zero),
            OpsKind::UnTracked(prep) => prep.finish(zero),
        }
    }
}
