//! Softmax of rows of scores and its gradient on CPUs with AVX2.

use std::arch::x86_64::{
    __m256, _mm256_add_ps, _mm256_cvtss_f32, _mm256_max_ps, _mm256_mul_ps, _mm256_set1_ps,
    _mm256_setzero_ps, _mm256_sub_ps,
};
use std::f32::consts::LOG2_E;

use super::cpu_softmax::{KEYS, RowSums, Running, finite};
use crate::cpu::exp_avx2::power_of_two;
use crate::cpu::lanes_avx2::{LANES, load, maximum, store, sum};
use crate::cpu::number::Number;

/// Same contract as [`super::cpu_softmax::exponentiate`].
///
/// # Safety
///
/// AVX2.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn exponentiate<N: Number>(
    scores: &[f32],
    n: usize,
    scale: f32,
    states: &mut [Running],
    to: &mut [N],
) {
    assert!(
        n <= KEYS && n.is_multiple_of(LANES),
        "rows must have whole vectors, of at most KEYS scores"
    );
    let rows = scores.chunks_exact(KEYS).zip(to.chunks_exact_mut(KEYS));
    for ((scores, to), state) in rows.zip(states) {
        let (scores, to) = (scores.as_ptr(), to.as_mut_ptr());
        let mut maxima = [_mm256_set1_ps(f32::NEG_INFINITY); 2];
        for first in (0..n).step_by(LANES) {
            let maximum_lanes = &mut maxima[first / LANES % 2];
            // SAFETY: rows have `n` elements. If an operand is NaN, the result is the second one.
            *maximum_lanes = unsafe { _mm256_max_ps(load(scores.add(first)), *maximum_lanes) };
        }
        let block = maximum(_mm256_max_ps(maxima[0], maxima[1])) * scale;
        let largest = if block > state.maximum {
            block
        } else {
            state.maximum
        };
        let shift = finite(largest);
        let mut sums = [_mm256_setzero_ps(); 2];
        for first in (0..n).step_by(LANES) {
            // SAFETY: as above.
            unsafe {
                let power = power(load(scores.add(first)), scale, shift);
                let sum_lanes = &mut sums[first / LANES % 2];
                *sum_lanes = _mm256_add_ps(*sum_lanes, power);
                store(to.add(first), power);
            }
        }
        let correction = _mm256_set1_ps((state.maximum - shift) * LOG2_E);
        let correction = _mm256_cvtss_f32(power_of_two(correction));
        *state = Running {
            maximum: largest,
            sum: state.sum * correction + sum(_mm256_add_ps(sums[0], sums[1])),
            correction,
        };
    }
}

/// The exponential of `score * scale - shift`, computed in this order, so that the largest score
/// gives an exponent of exactly 0, however large it is.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn power(score: __m256, scale: f32, shift: f32) -> __m256 {
    let score = _mm256_mul_ps(score, _mm256_set1_ps(scale));
    let shifted = _mm256_sub_ps(score, _mm256_set1_ps(shift));
    power_of_two(_mm256_mul_ps(shifted, _mm256_set1_ps(LOG2_E)))
}

/// Same contract as [`super::cpu_softmax::score_gradients`].
///
/// # Safety
///
/// AVX2; `n` is a multiple of 8.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn score_gradients<N: Number>(
    scores: &mut [f32],
    gradients: &mut [f32],
    n: usize,
    scale: f32,
    sums: &[RowSums],
    to: &mut [N],
) {
    assert!(
        n <= KEYS && n.is_multiple_of(LANES),
        "rows must have whole vectors, of at most KEYS scores"
    );
    let lines = scores
        .chunks_exact_mut(KEYS)
        .zip(gradients.chunks_exact_mut(KEYS))
        .zip(to.chunks_exact_mut(KEYS));
    for (((scores, gradients), to), sums) in lines.zip(sums) {
        let (scores, gradients) = (scores.as_mut_ptr(), gradients.as_mut_ptr());
        let to = to.as_mut_ptr();
        for first in (0..n).step_by(LANES) {
            // SAFETY: rows have `KEYS` elements, and the first `n` are used.
            unsafe {
                let p = power(load(scores.add(first)), scale, sums.log_sum);
                let centred = _mm256_sub_ps(load(gradients.add(first)), _mm256_set1_ps(sums.dot));
                let d = _mm256_mul_ps(_mm256_mul_ps(p, centred), _mm256_set1_ps(scale));
                store(scores.add(first), p);
                store(gradients.add(first), d);
                store(to.add(first), d);
            }
        }
    }
}
