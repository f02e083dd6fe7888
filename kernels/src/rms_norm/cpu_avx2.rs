//! RMSNorm on CPUs with AVX2.

use std::arch::x86_64::{
    __m256, _mm256_add_ps, _mm256_fmadd_ps, _mm256_fnmadd_ps, _mm256_mul_ps, _mm256_set1_ps,
    _mm256_setzero_ps,
};
use std::mem::MaybeUninit;

use crate::cpu::lanes_avx2::{LANES, load_some, store_some, sum};
use crate::cpu::number::Number;

/// Sums side by side: one alone would wait for itself.
const SUMS: usize = 4;

/// Rows of as many numbers as `weight` has.
///
/// # Safety
///
/// AVX2; `y` is as long as `x`, whole rows.
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
        for (i, first) in (0..d).step_by(LANES).enumerate() {
            // SAFETY: `d - first` numbers are left in the row.
            let x = unsafe { load_some(x.add(first), d - first) };
            squares[i % SUMS] = _mm256_fmadd_ps(x, x, squares[i % SUMS]);
        }
        let scale = _mm256_set1_ps(inverse_root(total(squares), d, eps));
        for first in (0..d).step_by(LANES) {
            let n = d - first;
            // SAFETY: as above, and in the weight.
            unsafe {
                let x = _mm256_mul_ps(load_some(x.add(first), n), scale);
                let weight = load_some(weight.as_ptr().add(first), n);
                store_some(y.add(first), n, _mm256_mul_ps(x, weight));
            }
        }
    }
}

/// Gradients of rows `x` from those of their results.
///
/// # Safety
///
/// AVX2; `dy` and `dx` are as long as `x`, whole rows.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn backward<T: Number>(
    x: &[f32],
    weight: &[f32],
    dy: &[T],
    eps: f32,
    dx: &mut [MaybeUninit<f32>],
) {
    let d = weight.len();
    let rows = x.chunks_exact(d).zip(dy.chunks_exact(d));
    for ((x, dy), dx) in rows.zip(dx.chunks_exact_mut(d)) {
        let (x, dy) = (x.as_ptr(), dy.as_ptr());
        let dx = dx.as_mut_ptr().cast::<f32>();
        // SAFETY: `d - first` numbers are left in each row and in the weight.
        let read = |first: usize| unsafe {
            let n = d - first;
            let dy = load_some(dy.add(first), n);
            let weight = load_some(weight.as_ptr().add(first), n);
            [load_some(x.add(first), n), _mm256_mul_ps(dy, weight)]
        };
        let mut squares = [_mm256_setzero_ps(); SUMS];
        let mut products = squares;
        for (i, first) in (0..d).step_by(LANES).enumerate() {
            let ([x, dy], i) = (read(first), i % SUMS);
            squares[i] = _mm256_fmadd_ps(x, x, squares[i]);
            products[i] = _mm256_fmadd_ps(dy, x, products[i]);
        }
        let scale = inverse_root(total(squares), d, eps);
        let along = _mm256_set1_ps(total(products) * scale * scale / d as f32);
        let scale = _mm256_set1_ps(scale);
        for first in (0..d).step_by(LANES) {
            let [x, dy] = read(first);
            let found = _mm256_mul_ps(scale, _mm256_fnmadd_ps(along, x, dy));
            // SAFETY: as above.
            unsafe { store_some(dx.add(first), d - first, found) };
        }
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
