//! Softmax of columns side by side: lines of scores, `[keys, W]`.

use crate::cpu::exp::exp;
use crate::cpu::isa::for_each_isa;

/// What is subtracted before exponentiating: a maximum of `-∞` would make NaN of what is 0.
#[inline(always)]
pub(super) fn finite(maximum: f32) -> f32 {
    if maximum == f32::NEG_INFINITY {
        0.0
    } else {
        maximum
    }
}

for_each_isa! {
    /// Scores to exponentials above their column's maximum, with that and the column's sum.
    pub(super) fn exponentiate<const W: usize>(
        scores: &mut [f32],
        maxima: &mut [f32; W],
        sums: &mut [f32; W],
    ) {
        let mut maximum = [f32::NEG_INFINITY; W];
        let (lines, _) = scores.as_chunks_mut::<W>();
        for line in lines.iter() {
            for (maximum, &x) in maximum.iter_mut().zip(line) {
                *maximum = if x > *maximum { x } else { *maximum };
            }
        }
        let shift = maximum.map(finite);
        let mut sum = [0.0f32; W];
        for line in lines {
            for ((x, sum), &shift) in line.iter_mut().zip(&mut sum).zip(&shift) {
                *x = exp(*x - shift);
                *sum += *x;
            }
        }
        *maxima = maximum;
        *sums = sum;
    }
}

for_each_isa! {
    /// Scores to probabilities, given the logarithm of each column's sum of exponentials.
    pub(super) fn probabilities<const W: usize>(scores: &mut [f32], log_sums: &[f32; W]) {
        let (lines, _) = scores.as_chunks_mut::<W>();
        for line in lines {
            for (x, &log_sum) in line.iter_mut().zip(log_sums) {
                *x = exp(*x - log_sum);
            }
        }
    }
}

for_each_isa! {
    /// `d = p * (d - along)` for each element: the gradient of the scores from that of the
    /// probabilities.
    pub(super) fn score_gradients<const W: usize>(
        d: &mut [f32],
        probabilities: &[f32],
        along: &[f32; W],
    ) {
        let (lines, _) = d.as_chunks_mut::<W>();
        let (probabilities, _) = probabilities.as_chunks::<W>();
        for (line, p) in lines.iter_mut().zip(probabilities) {
            for ((d, &p), &along) in line.iter_mut().zip(p).zip(along) {
                *d = p * (*d - along);
            }
        }
    }
}
