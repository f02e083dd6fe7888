//! Records operations with their own backward passes in the autodiff graph.

use std::fmt;
use std::marker::PhantomData;

use burn::backend::Backend;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;

/// Returns `output` as the result of an operation on `inputs`, which autodiff does not recompute.
///
/// `gradients` is the backward pass: it gets the gradient of the output, and which inputs need
/// gradients. Other gradients that it returns are dropped. What it captures is kept until then.
pub(crate) fn with_backward<B, C, G, const N: usize>(
    inputs: [NodeGuard; N],
    output: FloatTensor<B>,
    gradients: G,
) -> FloatTensor<Autodiff<B, C>>
where
    B: Backend,
    C: CheckpointStrategy,
    G: BackwardPass<B, N>,
{
    let prepared = Recorded(PhantomData::<fn() -> G>)
        .prepare::<C>(inputs)
        .compute_bound()
        .stateful();
    match prepared {
        OpsKind::Tracked(prep) => prep.finish(Saved(gradients), output),
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}

/// Computes the gradients of `N` inputs from the gradient of the output.
pub(crate) trait BackwardPass<B: Backend, const N: usize>:
    FnOnce(FloatTensor<B>, [bool; N]) -> [Option<FloatTensor<B>>; N]
    + Clone
    + Send
    + 'static
{
}

impl<B: Backend, const N: usize, G> BackwardPass<B, N> for G where
    G: FnOnce(FloatTensor<B>, [bool; N]) -> [Option<FloatTensor<B>>; N] + Clone + Send + 'static
{
}

/// The backward pass by its type; [`Saved`] is the pass itself.
struct Recorded<G>(PhantomData<fn() -> G>);

#[derive(Clone)]
struct Saved<G>(G);

impl<G> fmt::Debug for Recorded<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::any::type_name::<G>())
    }
}

impl<G> fmt::Debug for Saved<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::any::type_name::<G>())
    }
}

impl<B: Backend, G: BackwardPass<B, N>, const N: usize> Backward<B, N> for Recorded<G> {
    type State = Saved<G>;

    fn backward(self, ops: Ops<Self::State, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let dy = gradients.consume::<B>(&ops.node);
        let Saved(pass) = ops.state;
        let wanted = ops.parents.each_ref().map(Option::is_some);
        for (parent, gradient) in ops.parents.into_iter().zip(pass(dy, wanted)) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}
