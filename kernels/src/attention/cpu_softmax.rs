//! Softmax of rows of scores and its gradient, one block of keys at a time.

#[cfg(target_arch = "x86_64")]
use super::{cpu_softmax_avx2, cpu_softmax_avx512};
use crate::cpu::exp::exp;
use crate::cpu::isa::{Isa, for_each_isa};
use crate::cpu::number::Number;

/// Keys per block: a multiple of the panels, small enough that the scores fit in the L1 cache.
pub(super) const KEYS: usize = 128;

/// Scores processed in parallel; rows are padded to a multiple of this.
pub(super) const LANES: usize = 16;

/// The value to subtract before exponentiating: the maximum, or 0 if it is `-∞`, because
/// subtracting `-∞` would give NaN.
#[inline(always)]
pub(super) fn finite(maximum: f32) -> f32 {
    if maximum == f32::NEG_INFINITY {
        0.0
    } else {
        maximum
    }
}

/// Running softmax state of one row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Running {
    pub(super) maximum: f32,
    /// Sum of the exponentials, relative to the maximum.
    pub(super) sum: f32,
    /// Factor by which the last block of keys rescaled the earlier sums.
    pub(super) correction: f32,
}

impl Running {
    pub(super) const START: Self = Self {
        maximum: f32::NEG_INFINITY,
        sum: 0.0,
        correction: 1.0,
    };
}

/// Replaces rows of `n` scores, [`KEYS`] apart, by `exp(score * scale)` relative to the running
/// maximum.
///
/// `n` is a multiple of [`LANES`]. Updates each row's `state`.
pub(super) fn exponentiate<N: Number>(
    scores: &[f32],
    n: usize,
    scale: f32,
    states: &mut [Running],
    to: &mut [N],
) {
    match Isa::detect() {
        // SAFETY: the CPU feature was detected.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { cpu_softmax_avx512::exponentiate(scores, n, scale, states, to) },
        // SAFETY: the CPU feature was detected.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { cpu_softmax_avx2::exponentiate(scores, n, scale, states, to) },
        _ => exponentiate_in_loops(scores, n, scale, states, to),
    }
}

for_each_isa! {
    fn exponentiate_in_loops[N: Number](
        scores: &[f32],
        n: usize,
        scale: f32,
        states: &mut [Running],
        to: &mut [N],
    ) {
        let rows = scores.chunks_exact(KEYS).zip(to.chunks_exact_mut(KEYS));
        for ((scores, to), state) in rows.zip(states) {
            let (scores, _) = scores[..n].as_chunks::<LANES>();
            let (to, _) = to[..n].as_chunks_mut::<LANES>();
            let mut maxima = [f32::NEG_INFINITY; LANES];
            for line in scores {
                for (maximum, &x) in maxima.iter_mut().zip(line) {
                    *maximum = if x > *maximum { x } else { *maximum };
                }
            }
            let block = reduce_lanes(maxima, |a, b| if a > b { a } else { b }) * scale;
            let maximum = if block > state.maximum { block } else { state.maximum };
            let shift = finite(maximum);
            let mut sums = [0.0f32; LANES];
            for (line, to) in scores.iter().zip(to) {
                for ((&x, to), sum) in line.iter().zip(to).zip(&mut sums) {
                    let y = exp(x * scale - shift);
                    *sum += y;
                    *to = N::narrow(y);
                }
            }
            let correction = exp(state.maximum - shift);
            let sum = state.sum * correction + reduce_lanes(sums, |a, b| a + b);
            *state = Running { maximum, sum, correction };
        }
    }
}

/// Combines all lanes in tree order.
#[inline(always)]
fn reduce_lanes(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = join(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// Per-row inputs for the probabilities and their gradients.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowSums {
    /// Log-sum-exp of the row.
    pub(super) log_sum: f32,
    /// Dot product of the row's output and its gradient.
    pub(super) dot: f32,
}

/// Scores of the backward pass, in rows [`KEYS`] apart.
#[derive(Debug)]
pub(super) struct ScoreBlock<'a, N> {
    pub(super) scores: &'a mut [f32],
    /// Probability gradients.
    pub(super) gradients: &'a mut [f32],
    /// Columns, a multiple of [`LANES`].
    pub(super) n: usize,
    /// Multiplier of the scores.
    pub(super) scale: f32,
    pub(super) rows: &'a [RowSums],
    /// Target of the score gradients.
    pub(super) to: &'a mut [N],
}

/// Replaces scores by probabilities, and probability gradients by score gradients, which are also
/// written to `to`.
pub(super) fn score_gradients<N: Number>(block: ScoreBlock<'_, N>) {
    let ScoreBlock {
        scores,
        gradients,
        n,
        scale,
        rows,
        to,
    } = block;
    match Isa::detect() {
        // SAFETY: the CPU feature was detected.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe {
            cpu_softmax_avx2::score_gradients(scores, gradients, n, scale, rows, to)
        },
        _ => score_gradients_in_loops(scores, gradients, n, scale, rows, to),
    }
}

for_each_isa! {
    fn score_gradients_in_loops[N: Number](
        scores: &mut [f32],
        gradients: &mut [f32],
        n: usize,
        scale: f32,
        rows: &[RowSums],
        to: &mut [N],
    ) {
        let lines = scores.chunks_exact_mut(KEYS).zip(gradients.chunks_exact_mut(KEYS));
        for (((scores, gradients), to), row) in lines.zip(to.chunks_exact_mut(KEYS)).zip(rows) {
            let values = scores[..n].iter_mut().zip(&mut gradients[..n]).zip(&mut to[..n]);
            for ((p, d), to) in values {
                *p = exp(*p * scale - row.log_sum);
                *d = *p * (*d - row.dot) * scale;
                *to = N::narrow(*d);
            }
        }
    }
}
