//! The adapted linear map on slices: the low-rank product is summed in the same pass as the dense
//! one.

use crate::cpu::gemm::Products;
use crate::cpu::matrix::Matrix;
use crate::cpu::product::product;

/// The second factor of an adapter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Factors<'a> {
    /// `[out, r]`.
    pub(crate) b: Matrix<'a>,
    pub(crate) scaling: f32,
}

/// What the backward pass of an adapter gives.
#[derive(Debug)]
pub(crate) struct FactorGradients {
    /// Gradient of the low-rank values, times the scaling: `[n, r]`.
    pub(crate) d_low: Vec<f32>,
    /// `[r, in]`.
    pub(crate) d_a: Vec<f32>,
    /// `[out, r]`.
    pub(crate) d_b: Vec<f32>,
}

/// `x Wᵀ`, `[n, out]`.
pub(crate) fn linear(x: Matrix<'_>, weight: Matrix<'_>) -> Vec<f32> {
    product(&[(x, weight.transposed())])
}

/// `s x Aᵀ`, `[n, r]`.
pub(crate) fn low_rank(x: Matrix<'_>, a: Matrix<'_>, scaling: f32) -> Vec<f32> {
    scaled(product(&[(x, a.transposed())]), scaling)
}

/// `x Wᵀ + low Bᵀ`, `[n, out]`.
pub(crate) fn adapted(
    x: Matrix<'_>,
    weight: Matrix<'_>,
    low: Matrix<'_>,
    b: Matrix<'_>,
) -> Vec<f32> {
    product(&[(x, weight.transposed()), (low, b.transposed())])
}

/// Gradients of the factors, from the adapter's input and [`low_rank`] of it.
pub(crate) fn factor_gradients(
    input: Matrix<'_>,
    low: Matrix<'_>,
    factors: Factors<'_>,
    dy: Matrix<'_>,
) -> FactorGradients {
    let rank = low.columns();
    let d_low = scaled(product(&[(dy, factors.b)]), factors.scaling);
    let d_a = product(&[(Matrix::of_rows(&d_low, rank).transposed(), input)]);
    let d_b = product(&[(dy.transposed(), low)]);
    FactorGradients { d_low, d_a, d_b }
}

/// `Σ aᵢ bᵢ`: `dy W`, and `d_low A` where the adapter read the same input.
pub(crate) fn input_gradient(products: &Products<'_>) -> Vec<f32> {
    product(products)
}

fn scaled(mut values: Vec<f32>, factor: f32) -> Vec<f32> {
    values.iter_mut().for_each(|value| *value *= factor);
    values
}
