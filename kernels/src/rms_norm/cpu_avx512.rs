//! RMSNorm on CPUs with AVX-512. A row is written while the next one is read and summed, so that
//! memory is read and written at the same time and roots are ready when they are needed. With a
//! distance of two rows it takes up to an eighth longer, and wide rows no longer fit in the L1
//! cache.

use std::arch::x86_64::{
    __m512, _mm512_add_ps, _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_mul_ps, _mm512_reduce_add_ps,
    _mm512_set1_ps, _mm512_setzero_ps,
};
use std::mem::MaybeUninit;

use super::cpu::BackwardRows;
use crate::cpu::isa::for_avx512;
use crate::cpu::lanes_avx512::{TWO, load_two, store_two};
use crate::cpu::number::Number;

for_avx512! {
    /// Normalises rows with the length of `weight`.
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
        let (n, y) = (x.len() / d, y.as_mut_ptr().cast::<T>());
        let mut scale = 0.0;
        for i in 0..=n {
            // SAFETY: guaranteed by the caller; the rows exist.
            unsafe {
                let summed = x.as_ptr().wrapping_add(i * d);
                let squares = if i < n.min(1) {
                    normalize_row::<T, PAIRS, true, false>(summed, summed, weight, 0.0, y)
                } else if i == 0 {
                    continue;
                } else {
                    let (x, y) = (x.as_ptr().add((i - 1) * d), y.add((i - 1) * d));
                    match i < n {
                        true => normalize_row::<T, PAIRS, true, true>(summed, x, weight, scale, y),
                        false => normalize_row::<T, PAIRS, false, true>(x, x, weight, scale, y),
                    }
                };
                scale = inverse_root(squares, d, eps);
            }
        }
    }
}

/// Sums the squares of row `summed` (if `SUMS`) while row `x` is normalised to `y` (if `WRITES`).
///
/// # Safety
///
/// AVX-512, and its bf16 instructions if `PAIRS`; rows have the length of the weight.
#[inline(always)]
unsafe fn normalize_row<T: Number, const PAIRS: bool, const SUMS: bool, const WRITES: bool>(
    summed: *const f32,
    x: *const f32,
    weight: &[f32],
    scale: f32,
    y: *mut T,
) -> f32 {
    let d = weight.len();
    // SAFETY: guaranteed by the caller; `d - first` elements are left in each row.
    unsafe {
        let scale = _mm512_set1_ps(scale);
        let mut squares = [_mm512_setzero_ps(); 2];
        for first in (0..d).step_by(TWO) {
            let n = d - first;
            if SUMS {
                let summed = load_two(summed.add(first), n);
                for (squares, summed) in squares.iter_mut().zip(summed) {
                    *squares = _mm512_fmadd_ps(summed, summed, *squares);
                }
            }
            if WRITES {
                let mut normed = load_two(x.add(first), n);
                let weight = load_two(weight.as_ptr().add(first), n);
                for (x, weight) in normed.iter_mut().zip(weight) {
                    *x = _mm512_mul_ps(_mm512_mul_ps(*x, scale), weight);
                }
                store_two::<T, PAIRS>(y.add(first), n, normed);
            }
        }
        sum(squares)
    }
}

for_avx512! {
    /// Gradients of `rows.x`.
    ///
    /// # Safety
    ///
    /// AVX-512; `rows.dy` and `dx` are as long as `rows.x`, whole rows.
    pub(super) unsafe fn backward[T, PAIRS](
        rows: BackwardRows<'_, T>,
        dx: &mut [MaybeUninit<f32>],
    ) {
        let BackwardRows { x, weight, dy, eps } = rows;
        let d = weight.len();
        let (n, dx) = (x.len() / d, dx.as_mut_ptr().cast::<f32>());
        let mut totals = [0.0; 2];
        for i in 0..=n {
            // SAFETY: guaranteed by the caller; the rows exist.
            unsafe {
                let row_at = |first: usize| Row {
                    x: x.as_ptr().wrapping_add(first),
                    dy: dy.as_ptr().wrapping_add(first),
                };
                let summed = row_at(i * d);
                let [squares, along] = if i < n.min(1) {
                    row_gradient::<T, true, false>(summed, summed, weight, totals, dx)
                } else if i == 0 {
                    continue;
                } else {
                    let first = (i - 1) * d;
                    let (row, dx) = (row_at(first), dx.add(first));
                    match i < n {
                        true => row_gradient::<T, true, true>(summed, row, weight, totals, dx),
                        false => row_gradient::<T, false, true>(row, row, weight, totals, dx),
                    }
                };
                let scale = inverse_root(squares, d, eps);
                totals = [scale, along * scale * scale / d as f32];
            }
        }
    }
}

/// A row and the gradient of its output.
#[derive(Debug, Clone, Copy)]
struct Row<T> {
    x: *const f32,
    dy: *const T,
}

/// Sums the products of row `summed` with itself and with its gradient times the weight (if
/// `SUMS`), while the gradient of row `x` is written to `dx` (if `WRITES`).
///
/// # Safety
///
/// AVX-512; rows and their output gradients have the length of the weight.
#[inline(always)]
unsafe fn row_gradient<T: Number, const SUMS: bool, const WRITES: bool>(
    summed: Row<T>,
    row: Row<T>,
    weight: &[f32],
    [scale, along]: [f32; 2],
    dx: *mut f32,
) -> [f32; 2] {
    let d = weight.len();
    // SAFETY: guaranteed by the caller; `d - first` elements are left in each row.
    unsafe {
        let (scale, along) = (_mm512_set1_ps(scale), _mm512_set1_ps(along));
        let mut squares = [_mm512_setzero_ps(); 2];
        let mut products = squares;
        for first in (0..d).step_by(TWO) {
            let n = d - first;
            let weight = load_two(weight.as_ptr().add(first), n);
            if SUMS {
                let x = load_two(summed.x.add(first), n);
                let dy = load_two(summed.dy.add(first), n);
                for i in 0..2 {
                    let dy = _mm512_mul_ps(dy[i], weight[i]);
                    squares[i] = _mm512_fmadd_ps(x[i], x[i], squares[i]);
                    products[i] = _mm512_fmadd_ps(dy, x[i], products[i]);
                }
            }
            if WRITES {
                let x = load_two(row.x.add(first), n);
                let mut gradient = load_two(row.dy.add(first), n);
                for i in 0..2 {
                    let dy = _mm512_mul_ps(gradient[i], weight[i]);
                    gradient[i] = _mm512_mul_ps(scale, _mm512_fnmadd_ps(along, x[i], dy));
                }
                store_two::<f32, false>(dx.add(first), n, gradient);
            }
        }
        [sum(squares), sum(products)]
    }
}

/// `1 / sqrt(squares / d + eps)`.
#[inline(always)]
fn inverse_root(squares: f32, d: usize, eps: f32) -> f32 {
    1.0 / (squares / d as f32 + eps).sqrt()
}

#[inline(always)]
unsafe fn sum([a, b]: [__m512; 2]) -> f32 {
    // SAFETY: the caller guarantees AVX-512.
    unsafe { _mm512_reduce_add_ps(_mm512_add_ps(a, b)) }
}
