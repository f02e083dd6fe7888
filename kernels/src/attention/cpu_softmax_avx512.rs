//! Softmax of rows of scores and its gradient on CPUs with AVX-512, sixteen scores at a time.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_add_ps, _mm512_cvtne2ps_pbh, _mm512_fmsub_ps,
    _mm512_loadu_ps, _mm512_max_ps, _mm512_mul_ps, _mm512_permutexvar_epi16, _mm512_reduce_add_ps,
    _mm512_reduce_max_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_si512, _mm512_sub_ps,
};

use burn::tensor::bf16;

use super::cpu_softmax::{KEYS, RowSums, Running, finite};
use crate::cpu::lanes_avx512::{exp, store};
use crate::cpu::number::Number;

/// The contract is [`super::cpu_softmax::exponentiate`]'s.
///
/// # Safety
///
/// AVX-512.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
pub(super) unsafe fn exponentiate<N: Number>(
    scores: &[f32],
    n: usize,
    scale: f32,
    states: &mut [Running],
    to: &mut [N],
) {
    let rows = scores.chunks_exact(KEYS).zip(to.chunks_exact_mut(KEYS));
    for ((scores, to), state) in rows.zip(states) {
        let (scores, _) = scores[..n].as_chunks::<16>();
        let (to, _) = to[..n].as_chunks_mut::<16>();
        let mut maxima = _mm512_set1_ps(f32::NEG_INFINITY);
        for line in scores {
            // SAFETY: sixteen floats. The second operand is the result where one is NaN.
            maxima = unsafe { _mm512_max_ps(_mm512_loadu_ps(line.as_ptr()), maxima) };
        }
        let block = _mm512_reduce_max_ps(maxima) * scale;
        let maximum = if block > state.maximum {
            block
        } else {
            state.maximum
        };
        let shift = finite(maximum);
        let mut sums = _mm512_setzero_ps();
        for (line, to) in scores.iter().zip(to) {
            // SAFETY: sixteen numbers each.
            unsafe {
                let x = _mm512_loadu_ps(line.as_ptr());
                let y = exp(_mm512_fmsub_ps(
                    x,
                    _mm512_set1_ps(scale),
                    _mm512_set1_ps(shift),
                ));
                sums = _mm512_add_ps(sums, y);
                store(to.as_mut_ptr(), !0, y);
            }
        }
        let correction = crate::cpu::exp::exp(state.maximum - shift);
        let sum = state.sum * correction + _mm512_reduce_add_ps(sums);
        *state = Running {
            maximum,
            sum,
            correction,
        };
    }
}

/// Rows of `n` scores and of gradients of their probabilities, all [`KEYS`] apart, to gradients of
/// the scores in `rows`, and to pairs of neighbouring rows: of probabilities in the place of the
/// scores, of gradients of the scores in the place of the others. A row without a neighbour is
/// paired with zeros.
///
/// # Safety
///
/// AVX-512 with BF16; `n` is a multiple of 16.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16")]
pub(super) unsafe fn score_gradient_pairs(
    scores: &mut [f32],
    gradients: &mut [f32],
    (n, scale): (usize, f32),
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
            // SAFETY: rows of `KEYS` numbers, of which `n` are used, a multiple of 16.
            unsafe {
                for (i, sums) in sums.iter().enumerate() {
                    let at = i * KEYS + first;
                    let score = _mm512_loadu_ps(scores.as_ptr().add(at));
                    let gradient = _mm512_loadu_ps(gradients.as_ptr().add(at));
                    let shifted =
                        _mm512_fmsub_ps(score, _mm512_set1_ps(scale), _mm512_set1_ps(sums.log_sum));
                    p[i] = exp(shifted);
                    let rest = _mm512_sub_ps(gradient, _mm512_set1_ps(sums.along));
                    let scaled = _mm512_mul_ps(p[i], _mm512_set1_ps(scale));
                    d[i] = _mm512_mul_ps(scaled, rest);
                    store(rows.as_mut_ptr().add(at), !0, d[i]);
                }
                // Units of the first row only: the second row's place is free then.
                store_pairs(scores.as_mut_ptr().add(first), p);
                store_pairs(gradients.as_mut_ptr().add(first), d);
            }
        }
    }
}

/// Halves of the two vectors in turn.
///
/// # Safety
///
/// AVX-512 with BF16; room for sixteen units.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn store_pairs(to: *mut f32, [first, second]: [__m512; 2]) {
    const IN_TURN: [u16; 32] = {
        let mut order = [0; 32];
        let mut i = 0;
        while i < 16 {
            order[2 * i] = i as u16;
            order[2 * i + 1] = 16 + i as u16;
            i += 1;
        }
        order
    };
    // SAFETY: as the caller promises; vectors of halves and of integers are the same bits.
    unsafe {
        let halves = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first));
        let order = std::mem::transmute::<[u16; 32], __m512i>(IN_TURN);
        _mm512_storeu_si512(to.cast(), _mm512_permutexvar_epi16(order, halves));
    }
}
