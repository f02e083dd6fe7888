//! Matrix products: frozen layers in both directions, the thin factors of adapters, both together.
//!
//! Shapes are `tokens in out` for a layer, with the rank in the place of `out` for a factor A and
//! in the place of `in` for a factor B.

use std::hint::black_box;

use tooltune_kernels::LoraFactors;
use tooltune_kernels::cpu::matrix::Matrix;
use tooltune_kernels::cpu::product::product;
use tooltune_kernels::lora_linear::lora_linear;

use crate::inputs::{Precision, floats, leaf, random, shape};
use crate::{Prepare, Run};

pub(crate) const OPERATIONS: &[(&str, Prepare)] = &[
    ("linear", linear),
    ("linear_cold", linear_cold),
    ("linear_dx", linear_dx),
    ("factor", linear),
    ("factor_dx", linear_dx),
    ("factor_dw", factor_dw),
    ("adapted_both", adapted_both),
];

/// Weights of a cold product together: more than any cache holds.
const COLD_BYTES: usize = 128 << 20;

/// `x Wᵀ`.
fn linear(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    precision.f32_only()?;
    let [n, inputs, outputs] = shape(numbers)?;
    let (x, weight) = (floats(n * inputs), floats(outputs * inputs));
    Ok(Run::new(move || {
        let weight = Matrix::of_rows(&weight, inputs).transposed();
        black_box(product(&[(Matrix::of_rows(&x, inputs), weight)]));
    }))
}

/// `x Wᵀ` with another W each time, as in decoding: a layer is read once a token.
fn linear_cold(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    precision.f32_only()?;
    let [n, inputs, outputs] = shape(numbers)?;
    let x = floats(n * inputs);
    let copies = COLD_BYTES.div_ceil(4 * inputs * outputs).max(2);
    let weights = vec![floats(outputs * inputs); copies];
    let mut next = 0;
    Ok(Run::new(move || {
        next = (next + 1) % weights.len();
        let weight = Matrix::of_rows(&weights[next], inputs).transposed();
        black_box(product(&[(Matrix::of_rows(&x, inputs), weight)]));
    }))
}

/// `dy W`.
fn linear_dx(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    precision.f32_only()?;
    let [n, inputs, outputs] = shape(numbers)?;
    let (dy, weight) = (floats(n * outputs), floats(outputs * inputs));
    Ok(Run::new(move || {
        let weight = Matrix::of_rows(&weight, inputs);
        black_box(product(&[(Matrix::of_rows(&dy, outputs), weight)]));
    }))
}

/// `dyᵀ x`: the gradient of a factor.
fn factor_dw(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    precision.f32_only()?;
    let [n, inputs, outputs] = shape(numbers)?;
    let (x, dy) = (floats(n * inputs), floats(n * outputs));
    Ok(Run::new(move || {
        let dy = Matrix::of_rows(&dy, outputs).transposed();
        black_box(product(&[(dy, Matrix::of_rows(&x, inputs))]));
    }))
}

/// `x Wᵀ + s (x Aᵀ) Bᵀ` and the gradients of x, A and B; shape `tokens in out rank`.
fn adapted_both(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    precision.f32_only()?;
    let [n, inputs, outputs, rank] = shape(numbers)?;
    let (x, weight) = (random([n, inputs]), random([outputs, inputs]));
    let (a, b) = (random([rank, inputs]), random([outputs, rank]));
    Ok(Run::new(move || {
        let x = leaf(&x);
        let factors = LoraFactors {
            a: leaf(&a),
            b: leaf(&b),
            scaling: 2.0,
        };
        let y = lora_linear(x.clone(), &weight, None, Some((&factors, None)));
        let found = y.backward();
        let gradients = [&x, &factors.a, &factors.b].map(|leaf| leaf.grad(&found));
        black_box(gradients);
    }))
}
