//! RMSNorm on CPUs with AVX-512: a few rows at a time, so that the roots of some are on their way
//! while others are summed.

use std::arch::x86_64::{
    __m512, _mm512_add_ps, _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_mul_ps, _mm512_reduce_add_ps,
    _mm512_set1_ps, _mm512_setzero_ps,
};
use std::mem::MaybeUninit;

use crate::cpu::isa::for_avx512;
use crate::cpu::lanes_avx512::{TWO, dot, load_two, store_two};
use crate::cpu::number::Number;

/// Rows whose sums are computed before the first of them is written.
const ROWS: usize = 4;

for_avx512! {
    /// Rows of as many numbers as `weight` has.
    ///
    /// # Safety
    ///
    /// AVX-512; `y` is as long as `x`, whole rows.
    pub(super) unsafe fn forward[T, PAIRS](
        x: &[f32],
        weight: &[f32],
        eps: f32,
        y: &mut [MaybeUninit<T>],
    ) {
        let d = weight.len();
        for (x, y) in x.chunks(ROWS * d).zip(y.chunks_mut(ROWS * d)) {
            let mut scales = [0.0; ROWS];
            for (scale, x) in scales.iter_mut().zip(x.chunks_exact(d)) {
                // SAFETY: as the caller promises.
                *scale = inverse_root(unsafe { dot(x, x) }, d, eps);
            }
            let rows = x.chunks_exact(d).zip(y.chunks_exact_mut(d));
            for ((x, y), scale) in rows.zip(scales) {
                for first in (0..d).step_by(TWO) {
                    // SAFETY: as the caller promises; `d - first` numbers are left in each row.
                    unsafe {
                        let n = d - first;
                        let scale = _mm512_set1_ps(scale);
                        let x = load_two(x.as_ptr().add(first), n);
                        let w = load_two(weight.as_ptr().add(first), n);
                        let y = y.as_mut_ptr().add(first).cast::<T>();
                        let scaled = |i: usize| _mm512_mul_ps(_mm512_mul_ps(x[i], scale), w[i]);
let scaled = [scaled(0), scaled(1)];
                        store_two::<T, PAIRS>(y, n, scaled);
                    }
                }
            }
        }
    }
}

for_avx512! {
    /// Gradients of rows `x` from those of their results.
    ///
    /// # Safety
    ///
    /// AVX-512; `dy` and `dx` are as long as `x`, whole rows.
    pub(super) unsafe fn backward[T, PAIRS](
        x: &[f32],
        weight: &[f32],
        dy: &[T],
        eps: f32,
        dx: &mut [MaybeUninit<f32>],
    ) {
        let d = weight.len();
        let runs = x.chunks(ROWS * d).zip(dy.chunks(ROWS * d));
        for ((x, dy), dx) in runs.zip(dx.chunks_mut(ROWS * d)) {
            let mut factors = [[0.0; 2]; ROWS];
            for ((factors, x), dy) in factors.iter_mut().zip(x.chunks_exact(d)).zip(dy.chunks_exact(d)) {
                // SAFETY: as the caller promises.
                let [squares, along] = unsafe { dots(x, dy, weight) };
                let scale = inverse_root(squares, d, eps);
                *factors = [scale, along * scale * scale / d as f32];
            }
            let rows = x.chunks_exact(d).zip(dy.chunks_exact(d)).zip(dx.chunks_exact_mut(d));
            for (((x, dy), dx), [scale, along]) in rows.zip(factors) {
                for first in (0..d).step_by(TWO) {
                    // SAFETY: as the caller promises; `d - first` numbers are left in each row.
                    unsafe {
                        let n = d - first;
                        let (scale, along) = (_mm512_set1_ps(scale), _mm512_set1_ps(along));
                        let x = load_two(x.as_ptr().add(first), n);
                        let w = load_two(weight.as_ptr().add(first), n);
                        let dy = load_two(dy.as_ptr().add(first), n);
                        let dx = dx.as_mut_ptr().add(first).cast::<f32>();
                        let found = |i: usize| {
                            let across = _mm512_fnmadd_ps(along, x[i], _mm512_mul_ps(dy[i], w[i]));
                            _mm512_mul_ps(scale, across)
                        };
let found = [found(0), found(1)];
                        store_two::<f32, PAIRS>(dx, n, found);
                    }
                }
            }
        }
    }
}

/// `1 / sqrt(squares / d + eps)`.
#[inline(always)]
fn inverse_root(squares: f32, d: usize, eps: f32) -> f32 {
    1.0 / (squares / d as f32 + eps).sqrt()
}

/// Product of `x` with itself, and with `dy` times the weight.
///
/// # Safety
///
/// AVX-512; all rows are of one length.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
unsafe fn dots<T: Number>(x: &[f32], dy: &[T], weight: &[f32]) -> [f32; 2] {
    let mut squares = [_mm512_setzero_ps(); 2];
    let mut along = squares;
    for first in (0..x.len()).step_by(TWO) {
        // SAFETY: the rows have numbers from `first` on.
        unsafe {
            let n = x.len() - first;
            let w = load_two(weight.as_ptr().add(first), n);
            let dy = load_two(dy.as_ptr().add(first), n);
            let x = load_two(x.as_ptr().add(first), n);
            for i in 0..2 {
                squares[i] = _mm512_fmadd_ps(x[i], x[i], squares[i]);
                along[i] = _mm512_fmadd_ps(_mm512_mul_ps(dy[i], w[i]), x[i], along[i]);
            }
        }
    }
    let sum = |[a, b]: [__m512; 2]| _mm512_reduce_add_ps(_mm512_add_ps(a, b));
    [sum(squares), sum(along)]
}
