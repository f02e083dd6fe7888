//! Softmax of rows of scores and its gradient on CPUs with AVX-512, 16 scores per vector.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_add_ps, _mm512_cvtne2ps_pbh, _mm512_fmsub_ps,
    _mm512_loadu_ps, _mm512_max_ps, _mm512_mul_ps, _mm512_permutexvar_epi16, _mm512_reduce_add_ps,
    _mm512_reduce_max_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps, _mm512_storeu_si512,
    _mm512_sub_ps,
};
use std::f32::consts::LOG2_E;

use burn::tensor::bf16;

use super::cpu_softmax::{KEYS, RowSums, Running, finite};
use crate::cpu::exp_avx512::{power_of_two, powers_of_two};
use crate::cpu::isa::for_avx512;
use crate::cpu::lanes_avx512::{IN_TURN, store_one};
use crate::cpu::number::Number;

/// Rows whose maxima are found before the first exponential, one per lane.
const ROWS: usize = 16;

/// Rows whose exponentials are computed in parallel; with a single row each step would wait for the
/// previous one.
const ABREAST: usize = 4;

for_avx512! {
    /// Same contract as [`super::cpu_softmax::exponentiate`].
    ///
    /// # Safety
    ///
    /// AVX-512.
    pub(super) unsafe fn exponentiate[N, PAIRS](
        scores: &[f32],
        n: usize,
        scale: f32,
        states: &mut [Running],
        to: &mut [N],
    ) {
        assert!(n <= KEYS && scores.len().min(to.len()) >= states.len() * KEYS, "each state needs a row of at most KEYS scores");
        for (i, states) in states.chunks_mut(ROWS).enumerate() {
            let from = scores.as_ptr().wrapping_add(i * ROWS * KEYS);
            let to = to.as_mut_ptr().wrapping_add(i * ROWS * KEYS);
            // SAFETY: guaranteed by the caller; there is a row for each state.
            unsafe {
                let shifts = move_maxima(from, n, scale, states);
                let factor = scale * LOG2_E;
                let mut row = 0;
                while row + ABREAST <= states.len() {
                    let offset = row * KEYS;
                    let shifts = shifts.as_ptr().add(row);
                    let states = states.as_mut_ptr().add(row);
                    powers::<N, PAIRS, ABREAST>(from.add(offset), n, factor, shifts, states, to.add(offset));
                    row += ABREAST;
                }
                let offset = row * KEYS;
                let (from, to) = (from.add(offset), to.add(offset));
                let shifts = shifts.as_ptr().wrapping_add(row);
                let n_rows_left = states.len() - row;
                let states = states.as_mut_ptr().add(row);
                match n_rows_left {
                    0 => (),
                    1 => powers::<N, PAIRS, 1>(from, n, factor, shifts, states, to),
                    2 => powers::<N, PAIRS, 2>(from, n, factor, shifts, states, to),
                    _ => powers::<N, PAIRS, 3>(from, n, factor, shifts, states, to),
                }
            }
        }
    }
}

/// Updates the maxima of at most [`ROWS`] rows and rescales their sums; returns the shifts for the
/// base-2 exponents.
///
/// # Safety
///
/// AVX-512; `n` scores in each row, a multiple of 16.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
unsafe fn move_maxima(
    scores: *const f32,
    n: usize,
    scale: f32,
    states: &mut [Running],
) -> [f32; ROWS] {
    let (mut shifts, mut exponents) = ([0.0f32; ROWS], [0.0f32; ROWS]);
    for (i, state) in states.iter_mut().enumerate() {
        let mut maxima = _mm512_set1_ps(f32::NEG_INFINITY);
        for first in (0..n).step_by(16) {
            // SAFETY: sixteen floats. If an operand is NaN, the result is the second one.
            maxima =
                unsafe { _mm512_max_ps(_mm512_loadu_ps(scores.add(i * KEYS + first)), maxima) };
        }
        let block = _mm512_reduce_max_ps(maxima) * scale;
        let maximum = if block > state.maximum {
            block
        } else {
            state.maximum
        };
        let shift = finite(maximum);
        shifts[i] = shift * LOG2_E;
        exponents[i] = (state.maximum - shift) * LOG2_E;
        state.maximum = maximum;
    }
    // SAFETY: one float per lane.
    unsafe {
        let corrections = power_of_two::<f32>(_mm512_loadu_ps(exponents.as_ptr()));
        _mm512_storeu_ps(exponents.as_mut_ptr(), corrections);
    }
    for (state, correction) in states.iter_mut().zip(exponents) {
        state.correction = correction;
        state.sum *= correction;
    }
    shifts
}

/// Exponentials of `R` rows; adds them to the sums.
///
/// # Safety
///
/// AVX-512, and its bf16 instructions if `PAIRS`; `n` scores in each row, a multiple of 16, and `R`
/// shifts and states.
#[inline(always)]
unsafe fn powers<N: Number, const PAIRS: bool, const R: usize>(
    scores: *const f32,
    n: usize,
    factor: f32,
    shifts: *const f32,
    states: *mut Running,
    to: *mut N,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let factor = _mm512_set1_ps(factor);
        let mut sums = [_mm512_setzero_ps(); R];
        let mut shift = sums;
        for (i, shift) in shift.iter_mut().enumerate() {
            *shift = _mm512_set1_ps(*shifts.add(i));
        }
        for first in (0..n).step_by(16) {
            let mut x = shift;
            for (i, x) in x.iter_mut().enumerate() {
                *x = _mm512_fmsub_ps(_mm512_loadu_ps(scores.add(i * KEYS + first)), factor, *x);
            }
            let y = powers_of_two::<N, R>(x);
            for i in 0..R {
                sums[i] = _mm512_add_ps(sums[i], y[i]);
                store_one::<N, PAIRS>(to.add(i * KEYS + first), y[i]);
            }
        }
        for (i, sum) in sums.iter().enumerate() {
            (*states.add(i)).sum += _mm512_reduce_add_ps(*sum);
        }
    }
}

/// Same contract as [`super::cpu_softmax::score_gradients`].
///
/// # Safety
///
/// AVX-512; `n` is a multiple of 16.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
pub(super) unsafe fn score_gradients(
    scores: &mut [f32],
    gradients: &mut [f32],
    n: usize,
    scale: f32,
    sums: &[RowSums],
    rows: &mut [f32],
) {
    let lines = scores
        .chunks_exact_mut(KEYS)
        .zip(gradients.chunks_exact_mut(KEYS))
        .zip(rows.chunks_exact_mut(KEYS));
    let factor = _mm512_set1_ps(scale * LOG2_E);
    for (((scores, gradients), rows), sums) in lines.zip(sums) {
        let shift = _mm512_set1_ps(sums.log_sum * LOG2_E);
        for first in (0..n).step_by(16) {
            // SAFETY: rows have `KEYS` elements; the first `n`, a multiple of 16, are used.
            unsafe {
                let score = _mm512_loadu_ps(scores.as_ptr().add(first));
                let gradient = _mm512_loadu_ps(gradients.as_ptr().add(first));
                let p = power_of_two::<f32>(_mm512_fmsub_ps(score, factor, shift));
                let centred = _mm512_sub_ps(gradient, _mm512_set1_ps(sums.dot));
                let d = _mm512_mul_ps(_mm512_mul_ps(p, _mm512_set1_ps(scale)), centred);
                _mm512_storeu_ps(scores.as_mut_ptr().add(first), p);
                _mm512_storeu_ps(gradients.as_mut_ptr().add(first), d);
                _mm512_storeu_ps(rows.as_mut_ptr().add(first), d);
            }
        }
    }
}

/// Replaces rows of `n` scores by probabilities, and their probability gradients by score
/// gradients; rows are [`KEYS`] apart. The results are interleaved as pairs of adjacent rows, and a
/// last row without a partner is paired with zeros. Score gradients are also written to `rows`, not
/// interleaved.
///
/// # Safety
///
/// AVX-512 with BF16; `n` is a multiple of 16.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16")]
pub(super) unsafe fn score_gradient_pairs(
    scores: &mut [f32],
    gradients: &mut [f32],
    n: usize,
    scale: f32,
    sums: &[RowSums],
    rows: &mut [bf16],
) {
    let pairs = scores
        .chunks_exact_mut(2 * KEYS)
        .zip(gradients.chunks_exact_mut(2 * KEYS))
        .zip(rows.chunks_exact_mut(2 * KEYS));
    for (((scores, gradients), rows), sums) in pairs.zip(sums.chunks(2)) {
        for first in (0..n).step_by(16) {
            let mut p = [_mm512_setzero_ps(); 2];
            let mut d = p;
            // SAFETY: rows have `KEYS` elements; the first `n`, a multiple of 16, are used.
            unsafe {
                for (i, sums) in sums.iter().enumerate() {
                    let offset = i * KEYS + first;
                    let score = _mm512_loadu_ps(scores.as_ptr().add(offset));
                    let gradient = _mm512_loadu_ps(gradients.as_ptr().add(offset));
                    let shift = _mm512_set1_ps(sums.log_sum * LOG2_E);
                    let factor = _mm512_set1_ps(scale * LOG2_E);
                    p[i] = power_of_two::<bf16>(_mm512_fmsub_ps(score, factor, shift));
                    let centred = _mm512_sub_ps(gradient, _mm512_set1_ps(sums.dot));
                    let scaled = _mm512_mul_ps(p[i], _mm512_set1_ps(scale));
                    d[i] = _mm512_mul_ps(scaled, centred);
                    store_one::<bf16, true>(rows.as_mut_ptr().add(offset), d[i]);
                }
                // The pairs fit into the first row, which is overwritten only after both rows have
                // been read.
                store_pairs(scores.as_mut_ptr().add(first), p);
                store_pairs(gradients.as_mut_ptr().add(first), d);
            }
        }
    }
}

/// Interleaves the 16-bit elements of two vectors.
///
/// # Safety
///
/// AVX-512 with BF16; space for sixteen units.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn store_pairs(to: *mut f32, [first, second]: [__m512; 2]) {
    // SAFETY: guaranteed by the caller; bf16 and integer vectors have the same bits.
    unsafe {
        let halves = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first));
        let order = std::mem::transmute::<[u16; 32], __m512i>(IN_TURN);
        _mm512_storeu_si512(to.cast(), _mm512_permutexvar_epi16(order, halves));
    }
}
