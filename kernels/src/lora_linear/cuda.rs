//! Stacked LoRA linear layers on a GPU: with our own low-rank kernels on tensor cores; otherwise with
//! cuBLASLt, if it is available; otherwise with Burn's matrix products and our dropout.

use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use super::adapter::{AdapterPlan, PartLayout};
use super::backend::{Frozen, LinearOps, LinearPasses, Operands, Saved, Spec, piecewise_backward};
use super::composed;
use super::cpu::Wants;
use super::low_rank;
use crate::cube::launch::output;
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
    let dense = with_dense_weight(&frozen, &spec, &x, !spec.unread);
    if let Some(result) = low_rank::forward(&x, given_factors, given_residual, &dense, &spec) {
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
        super::cublaslt::forward(&x, given_factors, given_residual, &dense, &spec)
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
    let (y, saved) = composed::forward(x, factors, residual, dense, spec);
    (y, Saved { frozen, ..saved })
}

/// The tensors with a matrix for products: a quantised weight is dequantised in temporary memory. If
/// products do not read the weight, the matrix has arbitrary values.
fn with_dense_weight(
    frozen: &Frozen<CubeBackend>,
    spec: &Spec,
    like: &CubeTensor,
    is_read: bool,
) -> Frozen<CubeBackend> {
    let Some(quantised) = &spec.quantised else {
        return frozen.clone();
    };
    let matrix = if is_read {
        quantised.dense(like)
    } else {
        output(like, quantised.dims(), quantised.compute_dtype().dtype())
    };
    Frozen {
        weight: Maybe::Present(matrix),
        ..frozen.clone()
    }
}

fn backward(
    mut saved: Saved<CubeBackend>,
    dy: FloatTensor<CubeBackend>,
    wants: Wants,
) -> (
    Option<FloatTensor<CubeBackend>>,
    Option<FloatTensor<CubeBackend>>,
) {
    let is_read = wants == Wants::InputAndFactors;
    saved.frozen = with_dense_weight(&saved.frozen, &saved.spec, &saved.x, is_read);
    #[cfg(feature = "cuda")]
    if let Some(gradients) = super::cublaslt::backward(&saved, &dy, wants) {
        return gradients;
    }
    composed::backward(saved, dy, wants)
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
    let is_read = wants == Wants::InputAndFactors;
    let dense = with_dense_weight(&saved.frozen, &saved.spec, &saved.x, is_read);
    let dense = Saved {
        frozen: dense,
        ..saved.clone()
    };
    if let Some(gradients) = low_rank::input_backward(&dense, &dy, added.as_ref(), wants) {
        return gradients;
    }
    drop(dense);
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
