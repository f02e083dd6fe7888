//! RMSNorm on slices, one pass a row.

use std::mem::MaybeUninit;

use crate::cpu::isa::for_each_isa;
use crate::cpu::rows::map_rows;
use crate::cpu::sum::sum_of_pairs;

/// `[n, d]` to `[n, d]`.
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    // SAFETY: `forward` writes every element of its target.
    unsafe { map_rows(x, weight.len(), |_, x, y| forward(x, weight, eps, y)) }
}

/// Gradient of `x`, `[n, d]`.
pub(crate) fn rms_norm_dx(x: &[f32], weight: &[f32], dy: &[f32], eps: f32) -> Vec<f32> {
    // SAFETY: `backward` writes every element of its target.
    unsafe {
        map_rows(x, weight.len(), |start, x, dx| {
            backward(x, weight, &dy[start..start + x.len()], eps, dx);
        })
    }
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_pairs(x, x, |a, b| a * b) / x.len() as f32 + eps).sqrt()
}

for_each_isa! {
    fn forward(x: &[f32], weight: &[f32], eps: f32, y: &mut [MaybeUninit<f32>]) {
        let d = weight.len();
        for (x, y) in x.chunks_exact(d).zip(y.chunks_exact_mut(d)) {
            let scale = inverse_rms(x, eps);
            for ((y, &x), &w) in y.iter_mut().zip(x).zip(weight) {
                y.write(x * scale * w);
            }
        }
    }
}

for_each_isa! {
    fn backward(x: &[f32], weight: &[f32], dy: &[f32], eps: f32, dx: &mut [MaybeUninit<f32>]) {
        let d = weight.len();
        for ((x, dy), dx) in x.chunks_exact(d).zip(dy.chunks_exact(d)).zip(dx.chunks_exact_mut(d)) {
            let scale = inverse_rms(x, eps);
            // `dx` holds `dy * w` until the row's sum is known.
            for ((dx, &g), &w) in dx.iter_mut().zip(dy).zip(weight) {
                dx.write(g * w);
            }
            // SAFETY: the loop above wrote the whole row.
            let dx = unsafe { dx.assume_init_mut() };
            let along = sum_of_pairs(dx, x, |a, b| a * b) * scale * scale / d as f32;
            for (dx, &x) in dx.iter_mut().zip(x) {
                *dx = scale * (*dx - along * x);
            }
        }
    }
}
