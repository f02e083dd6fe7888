//! RMSNorm on CPUs with AVX2.

use std::arch::x86_64::{
    __m256, _mm256_add_ps, _mm256_fmadd_ps, _mm256_fnmadd_ps, _mm256_mul_ps, _mm256_set1_ps,
    _mm256_setzero_ps,
};
use std::mem::MaybeUninit;

use super::cpu::BackwardRows;
use crate::cpu::lanes_avx2::{LANES, load, store, sum};
use crate::cpu::number::Number;

/// Parallel sums: a single one would stall on its own latency.
const SUMS: usize = 4;

/// Normalises rows with the length of `weight`.
///
/// # Safety
///
/// AVX2; `y` is as long as `x`, whole rows of a multiple of 8 elements.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn forward<T: Number>(
    x: &[f32],
    weight: &[f32],
    eps: f32,
    y: &mut [MaybeUninit<T>],
) {
    let d = weight.len();
    for (x, y) in x.chunks_exact(d).zip(y.chunks_exact_mut(d)) {
        let (x, y) = (x.as_ptr(), y.as_mut_ptr().cast::<T>());
        let mut squares = [_mm256_setzero_ps(); SUMS];
        for first in (0..d).step_by(SUMS * LANES) {
            for (i, squares) in squares.iter_mut().enumerate() {
                let first = first + i * LANES;
                if first < d {
                    // SAFETY: eight elements of the row.
                    let x = unsafe { load(x.add(first)) };
                    *squares = _mm256_fmadd_ps(x, x, *squares);
                }
            }
        }
        let scale = _mm256_set1_ps(inverse_root(total(squares), d, eps));
        for first in (0..d).step_by(LANES) {
            // SAFETY: as above, and of the weight.
            unsafe {
                let x = _mm256_mul_ps(load(x.add(first)), scale);
                let weight = load(weight.as_ptr().add(first));
                store(y.add(first), _mm256_mul_ps(x, weight));
            }
        }
    }
}

/// Gradients of `rows.x`.
///
/// # Safety
///
/// AVX2; `rows.dy` and `dx` are as long as `rows.x`, whole rows of a multiple of 8 elements.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn backward<T: Number>(rows: BackwardRows<'_, T>, dx: &mut [MaybeUninit<f32>]) {
    let BackwardRows { x, weight, dy, eps } = rows;
    let d = weight.len();
    let lines = x.chunks_exact(d).zip(dy.chunks_exact(d));
    for ((x, dy), dx) in lines.zip(dx.chunks_exact_mut(d)) {
        let (x, weight, dy) = (x.as_ptr(), weight.as_ptr(), dy.as_ptr());
        let dx = dx.as_mut_ptr().cast::<f32>();
        let mut squares = [_mm256_setzero_ps(); SUMS];
        let mut products = squares;
        for first in (0..d).step_by(SUMS * LANES) {
            for (i, (squares, products)) in squares.iter_mut().zip(&mut products).enumerate() {
                let first = first + i * LANES;
                if first < d {
                    // SAFETY: eight elements of the row.
                    let (x, dy) = unsafe { numbers(x, weight, dy, first) };
                    *squares = _mm256_fmadd_ps(x, x, *squares);
                    *products = _mm256_fmadd_ps(dy, x, *products);
                }
            }
        }
        let scale = inverse_root(total(squares), d, eps);
        let projection = _mm256_set1_ps(total(products) * scale * scale / d as f32);
        let scale = _mm256_set1_ps(scale);
        for first in (0..d).step_by(LANES) {
            // SAFETY: as above.
            unsafe {
                let (x, dy) = numbers(x, weight, dy, first);
                let gradient = _mm256_mul_ps(scale, _mm256_fnmadd_ps(projection, x, dy));
                store(dx.add(first), gradient);
            }
        }
    }
}

/// Loads eight elements of a row, and their output gradients times the weight.
///
/// # Safety
///
/// AVX2; there are eight elements at `first`.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn numbers<T: Number>(
    x: *const f32,
    weight: *const f32,
    dy: *const T,
    first: usize,
) -> (__m256, __m256) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let dy = _mm256_mul_ps(load(dy.add(first)), load(weight.add(first)));
        (load(x.add(first)), dy)
    }
}

/// `1 / sqrt(squares / d + eps)`.
fn inverse_root(squares: f32, d: usize, eps: f32) -> f32 {
    1.0 / (squares / d as f32 + eps).sqrt()
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn total([a, b, c, d]: [__m256; SUMS]) -> f32 {
    sum(_mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d)))
}
