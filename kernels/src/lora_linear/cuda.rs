//! Stacked adapted maps on a GPU, by Burn's matrix products and our dropout.

use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use super::backend::{Frozen, LinearOps, LinearPasses, Saved, Spec};
use super::composed;
use super::cpu::Wants;
use crate::maybe::Maybe;

impl LinearOps for CubeBackend {
    fn stacked_linear(
        x: CubeTensor,
        factors: Maybe<Self>,
        residual: Maybe<Self>,
        frozen: Frozen<Self>,
        spec: Spec,
    ) -> CubeTensor {
        let (factors, residual) = (factors.into_option(), residual.into_option());
        let x = Self::read(x, frozen.norm.clone().into_option(), spec.reading);
        composed::forward::<Self>(x, factors, residual, frozen, spec).0
    }
}

impl LinearPasses for CubeBackend {
    fn linear_forward(
        x: CubeTensor,
        factors: Option<CubeTensor>,
        residual: Option<CubeTensor>,
        frozen: Frozen<Self>,
        spec: Spec,
    ) -> (CubeTensor, Saved<Self>) {
        composed::forward::<Self>(x, factors, residual, frozen, spec)
    }

    fn linear_backward(
        saved: Saved<Self>,
        dy: CubeTensor,
        wants: Wants,
    ) -> (Option<CubeTensor>, Option<CubeTensor>) {
        composed::backward::<Self>(saved, dy, wants)
    }
}
