//! Stacked LoRA linear layers on a GPU: with our own low-rank kernels on tensor cores; otherwise with
//! cuBLASLt, if it is available; otherwise with Burn's matmuls and our dropout.

use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use super::adapter::{AdapterPlan, PartLayout};
use super::backend::{Frozen, LinearOps, LinearPasses, Operands, Saved, Spec, piecewise_backward};
use super::composed;
use super::cpu::Wants;
use super::low_rank;
use crate::dropout::Dropout;
use crate::maybe::Maybe;

impl LinearOps for CubeBackend {
    fn stacked_linear(
        x: FloatTensor<Self>,
        operands: Operands<Self>,
        spec: Spec,
    ) -> FloatTensor<Self> {
        Self::linear_output(x, operands, spec)
    }
}

impl LinearPasses for CubeBackend {
    fn linear_forward(
        x: FloatTensor<Self>,
        factors: Option<FloatTensor<Self>>,
        residual: Option<FloatTensor<Self>>,
        frozen: Frozen<Self>,
        spec: Spec,
    ) -> (FloatTensor<Self>, Saved<Self>) {
        forward(x, factors, residual, frozen, spec)
    }

    fn linear_backward(
        saved: Saved<Self>,
        dy: FloatTensor<Self>,
        wants: Wants,
    ) -> (Option<FloatTensor<Self>>, Option<FloatTensor<Self>>) {
        backward(saved, dy, wants)
    }

    fn input_backward(
        saved: Saved<Self>,
        dy: FloatTensor<Self>,
        added: Option<FloatTensor<Self>>,
        wants: Wants,
    ) -> (Option<FloatTensor<Self>>, Option<FloatTensor<Self>>) {
        input_backward(saved, dy, added, wants)
    }
}

fn forward(
    x: FloatTensor<CubeBackend>,
    factors: Option<FloatTensor<CubeBackend>>,
    residual: Option<FloatTensor<CubeBackend>>,
    frozen: Frozen<CubeBackend>,
    spec: Spec,
) -> (FloatTensor<CubeBackend>, Saved<CubeBackend>) {
    let (given_factors, given_residual) = (factors.as_ref(), residual.as_ref());
    if let Some(result) = low_rank::forward(&x, given_factors, given_residual, &frozen, &spec) {
        let saved = Saved {
            x,
            low: Some(result.low),
            factors: Some(result.factors),
            frozen,
            spec,
        };
        return (result.y, saved);
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
    let dense = with_weight(frozen.clone(), &spec);
    let (y, saved) = composed::forward(x, factors, residual, dense, spec);
    // The state for the backward pass must not keep a supplied matrix.
    (y, Saved { frozen, ..saved })
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
    let frozen = match wants {
        Wants::InputAndFactors => with_weight(saved.frozen.clone(), &saved.spec),
        Wants::Factors => saved.frozen.clone(),
    };
    composed::backward(Saved { frozen, ..saved }, dy, wants)
}

/// The dense weight, `[Σ out, in]`. A supplied one is computed now and lives until it is dropped.
pub(super) fn dense_weight(frozen: &Frozen<CubeBackend>, spec: &Spec) -> CubeTensor {
    match &spec.supply {
        Some(supply) => supply.dense(),
        None => {
            let weight = frozen.weight.clone().into_option();
            weight.expect("a weight on a GPU is a tensor or supplied")
        }
    }
}

/// The tensors with a dense weight.
fn with_weight(frozen: Frozen<CubeBackend>, spec: &Spec) -> Frozen<CubeBackend> {
    Frozen {
        weight: Maybe::Present(dense_weight(&frozen, spec)),
        ..frozen
    }
}

fn input_backward(
    saved: Saved<CubeBackend>,
    dy: FloatTensor<CubeBackend>,
    added: Option<FloatTensor<CubeBackend>>,
    wants: Wants,
) -> (
    Option<FloatTensor<CubeBackend>>,
    Option<FloatTensor<CubeBackend>>,
) {
    if let Some(gradients) = low_rank::input_backward(&saved, &dy, added.as_ref(), wants) {
        return gradients;
    }
    piecewise_backward(saved, dy, added, wants)
}

/// The parts of a plan, with their dropout.
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

/// Scale of a part's low-rank values.
pub(super) fn scale(part: &PartLayout, dropout: Option<Dropout>) -> f32 {
    part.scaling * dropout.map_or(1.0, Dropout::scale)
}
