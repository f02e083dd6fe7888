//! RMSNorm on CPUs with AVX-512: a row is written while the next one is read and summed, so that
//! memory is read and written at once and roots are known before they are needed. With two rows
//! between them it takes up to an eighth longer, and wide rows no longer stay in the first level.

use std::arch::x86_64::{
    __m512, _mm512_add_ps, _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_mul_ps, _mm512_reduce_add_ps,
    _mm512_set1_ps, _mm512_setzero_ps,
};
use std::mem::MaybeUninit;

use crate::cpu::isa::for_avx512;
use crate::cpu::lanes_avx512::{TWO, load_two, store_two};
use crate::cpu::number::Number;

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
        let (n, y) = (x.len() / d, y.as_mut_ptr().cast::<T>());
        let mut scale = 0.0;
        for i in 0..=n {
            // SAFETY: as the caller promises; the rows exist.
            unsafe {
                let summed = x.as_ptr().wrapping_add(i * d);
                let squares = if i < n.min(1) {
                    normed::<T, PAIRS, true, false>(summed, summed, weight, 0.0, y)
                } else if i == 0 {
                    continue;
                } else {
                    let (x, y) = (x.as_ptr().add((i - 1) * d), y.add((i - 1) * d));
                    match i < n {
                        true => normed::<T, PAIRS, true, true>(summed, x, weight, scale, y),
                        false => normed::<T, PAIRS, false, true>(x, x, weight, scale, y),
                    }
                };
                scale = inverse_root(squares, d, eps);
            }
        }
    }
}

/// The squares of row `summed`, with `SUMS`, while row `x` is normed to `y`, with `WRITES`.
///
/// # Safety
///
/// AVX-512, with `PAIRS` its instructions for bf16; rows of as many numbers as the weight has.
#[inline(always)]
unsafe fn normed<T: Number, const PAIRS: bool, const SUMS: bool, const WRITES: bool>(
    summed: *const f32,
    x: *const f32,
    weight: &[f32],
    scale: f32,
    y: *mut T,
) -> f32 {
    let d = weight.len();
    // SAFETY: as the caller promises; `d - first` numbers are left in each row.
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
        let (n, dx) = (x.len() / d, dx.as_mut_ptr().cast::<f32>());
        let mut found = [0.0; 2];
        for i in 0..=n {
            // SAFETY: as the caller promises; the rows exist.
            unsafe {
                let at = |first: usize| Row {
                    x: x.as_ptr().wrapping_add(first),
                    dy: dy.as_ptr().wrapping_add(first),
                };
                let summed = at(i * d);
                let [squares, along] = if i < n.min(1) {
                    turned::<T, true, false>(summed, summed, weight, found, dx)
                } else if i == 0 {
                    continue;
                } else {
                    let first = (i - 1) * d;
                    let (row, dx) = (at(first), dx.add(first));
                    match i < n {
                        true => turned::<T, true, true>(summed, row, weight, found, dx),
                        false => turned::<T, false, true>(row, row, weight, found, dx),
                    }
                };
                let scale = inverse_root(squares, d, eps);
                found = [scale, along * scale * scale / d as f32];
            }
        }
    }
}

/// A row and the gradient of its result.
#[derive(Debug, Clone, Copy)]
struct Row<T> {
    x: *const f32,
    dy: *const T,
}

/// The products of row `summed` with itself and with its gradient times the weight, with `SUMS`,
/// while the gradient of row `x` goes to `dx`, with `WRITES`.
///
/// # Safety
///
/// AVX-512; rows, and their results' gradients, of as many numbers as the weight has.
#[inline(always)]
unsafe fn turned<T: Number, const SUMS: bool, const WRITES: bool>(
    summed: Row<T>,
    row: Row<T>,
    weight: &[f32],
    [scale, along]: [f32; 2],
    dx: *mut f32,
) -> [f32; 2] {
    let d = weight.len();
    // SAFETY: as the caller promises; `d - first` numbers are left in each row.
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
                let mut found = load_two(row.dy.add(first), n);
                for i in 0..2 {
                    let dy = _mm512_mul_ps(found[i], weight[i]);
                    found[i] = _mm512_mul_ps(scale, _mm512_fnmadd_ps(along, x[i], dy));
                }
                store_two::<f32, false>(dx.add(first), n, found);
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
    // SAFETY: AVX-512 by the caller's promise.
    unsafe { _mm512_reduce_add_ps(_mm512_add_ps(a, b)) }
}
