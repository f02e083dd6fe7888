//! Stacked adapted maps on a GPU: on tensor cores with low-rank products of our own, else by cuBLASLt where
//! it is there, else by Burn's matrix products and our dropout.
//!
//! With Fusion, products, casts and sums stay operations of Burn, which may run a bias, a residual
//! and a cast in one kernel; only our own kernels are sealed.

use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;

use super::adapter::{AdapterPlan, PartLayout};
use super::backend::{Frozen, LinearOps, LinearPasses, Saved, Spec, piecewise_backward};
use super::composed;
use super::cpu::Wants;
use super::low_rank;
use crate::dropout::Dropout;
use crate::maybe::Maybe;

/// Both passes of a backend, in its own operations.
macro_rules! in_operations_of {
    ($backend:ty, $forward:path, $backward:path, $given_backward:path) => {
        impl LinearOps for $backend {
            fn stacked_linear(
                x: FloatTensor<Self>,
                factors: Maybe<Self>,
                residual: Maybe<Self>,
                frozen: Frozen<Self>,
                spec: Spec,
            ) -> FloatTensor<Self> {
                Self::linear_output(x, factors, residual, frozen, spec)
            }
        }

        impl LinearPasses for $backend {
            fn linear_forward(
                x: FloatTensor<Self>,
                factors: Option<FloatTensor<Self>>,
                residual: Option<FloatTensor<Self>>,
                frozen: Frozen<Self>,
                spec: Spec,
            ) -> (FloatTensor<Self>, Saved<Self>) {
                $forward(x, factors, residual, frozen, spec)
            }

            fn linear_backward(
                saved: Saved<Self>,
                dy: FloatTensor<Self>,
                wants: Wants,
            ) -> (Option<FloatTensor<Self>>, Option<FloatTensor<Self>>) {
                $backward(saved, dy, wants)
            }

            fn given_backward(
                saved: Saved<Self>,
                dy: FloatTensor<Self>,
                added: Option<FloatTensor<Self>>,
                wants: Wants,
            ) -> (Option<FloatTensor<Self>>, Option<FloatTensor<Self>>) {
                $given_backward(saved, dy, added, wants)
            }
        }
    };
}

in_operations_of!(CubeBackend, forward, backward, given_backward);
#[cfg(feature = "fusion")]
in_operations_of!(
    burn::backend::fusion::Fusion<CubeBackend>,
    composed::forward,
    composed::backward,
    piecewise_backward
);

fn forward(
    x: FloatTensor<CubeBackend>,
    factors: Option<FloatTensor<CubeBackend>>,
    residual: Option<FloatTensor<CubeBackend>>,
    frozen: Frozen<CubeBackend>,
    spec: Spec,
) -> (FloatTensor<CubeBackend>, Saved<CubeBackend>) {
    let (given_factors, given_residual) = (factors.as_ref(), residual.as_ref());
    if let Some(done) = low_rank::forward(&x, given_factors, given_residual, &frozen, &spec) {
        let saved = Saved {
            x,
            low: Some(done.low),
            factors: Some(done.factors),
            frozen,
            spec,
        };
        return (done.y, saved);
    }
    #[cfg(feature = "cuda")]
    if let Some((y, low)) =
        super::cublaslt::forward(&x, given_factors, given_residual, &frozen, &spec)
    {
        let saved = Saved {
            x,
            low,
            factors,
            frozen,
            spec,
        };
        return (y, saved);
    }
    composed::forward(x, factors, residual, frozen, spec)
}

fn backward(
    saved: Saved<CubeBackend>,
    dy: FloatTensor<CubeBackend>,
    wants: Wants,
) -> (
    Option<FloatTensor<CubeBackend>>,
    Option<FloatTensor<CubeBackend>>,
) {
    #[cfg(feature = "cuda")]
    if let Some(gradients) = super::cublaslt::backward(&saved, &dy, wants) {
        return gradients;
    }
    composed::backward(saved, dy, wants)
}

fn given_backward(
    saved: Saved<CubeBackend>,
    dy: FloatTensor<CubeBackend>,
    added: Option<FloatTensor<CubeBackend>>,
    wants: Wants,
) -> (
    Option<FloatTensor<CubeBackend>>,
    Option<FloatTensor<CubeBackend>>,
) {
    if let Some(gradients) = low_rank::given_backward(&saved, &dy, added.as_ref(), wants) {
        return gradients;
    }
    piecewise_backward(saved, dy, added, wants)
}

/// The parts of a plan with their dropout.
pub(super) fn parts<'a>(
    plan: &'a AdapterPlan,
    spec: &Spec,
) -> impl Iterator<Item = (&'a PartLayout, Option<Dropout>)> {
    let dropout = spec.part_dropout();
    let dropout = move |i: usize| dropout.get(i).copied().flatten();
    plan.layout
        .parts
        .iter()
        .enumerate()
        .map(move |(i, part)| (part, dropout(i)))
}

/// What a part's low-rank values are multiplied with.
pub(super) fn scale(part: &PartLayout, dropout: Option<Dropout>) -> f32 {
    part.scaling * dropout.map_or(1.0, Dropout::scale)
}
