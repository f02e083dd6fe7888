//! Stacked adapted maps on a GPU: by cuBLASLt where it is there, else by Burn's matrix products and
//! our dropout.
//!
//! With Fusion, products, casts and sums stay operations of Burn, which may run a bias, a residual
//! and a cast in one kernel; only our own kernels are sealed.

use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;

use super::backend::{Frozen, LinearOps, LinearPasses, Saved, Spec};
use super::composed;
use super::cpu::Wants;
use crate::maybe::Maybe;

/// Both passes of a backend, in its own operations.
macro_rules! in_operations_of {
    ($backend:ty, $forward:path, $backward:path) => {
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
        }
    };
}

in_operations_of!(CubeBackend, forward, backward);
#[cfg(feature = "fusion")]
in_operations_of!(
    burn::backend::fusion::Fusion<CubeBackend>,
    composed::forward,
    composed::backward
);

fn forward(
    x: FloatTensor<CubeBackend>,
    factors: Option<FloatTensor<CubeBackend>>,
    residual: Option<FloatTensor<CubeBackend>>,
    frozen: Frozen<CubeBackend>,
    spec: Spec,
) -> (FloatTensor<CubeBackend>, Saved<CubeBackend>) {
    #[cfg(feature = "cuda")]
    if let Some(done) =
        super::cublaslt::forward(&x, factors.as_ref(), residual.as_ref(), &frozen, &spec)
    {
        let saved = Saved {
            x,
            low: done.low,
            factors: done.factors,
            frozen,
            spec,
        };
        return (done.y, saved);
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
