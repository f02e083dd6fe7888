//! Stacked adapted maps on a GPU, by Burn's matrix products and our dropout.
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
    ($backend:ty) => {
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
                composed::forward::<Self>(x, factors, residual, frozen, spec)
            }

            fn linear_backward(
                saved: Saved<Self>,
                dy: FloatTensor<Self>,
                wants: Wants,
            ) -> (Option<FloatTensor<Self>>, Option<FloatTensor<Self>>) {
                composed::backward::<Self>(saved, dy, wants)
            }
        }
    };
}

in_operations_of!(CubeBackend);
#[cfg(feature = "fusion")]
in_operations_of!(burn::backend::fusion::Fusion<CubeBackend>);
