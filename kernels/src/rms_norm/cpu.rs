//! RMSNorm on slices; the backward pass recomputes the root instead of storing it.

use std::mem::MaybeUninit;

#[cfg(target_arch = "x86_64")]
use super::{cpu_avx2, cpu_avx512};
use crate::cpu::isa::{Isa, for_each_isa};
use crate::cpu::number::Number;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::write_rows;
use crate::cpu::sum::sum_of_pairs;

/// Normalises `[n, d]`.
pub(super) fn rms_norm<T: Number>(x: &[f32], weight: &[f32], eps: f32) -> Buffer<T> {
    let d = weight.len();
    // SAFETY: `forward` writes every element of its target.
    unsafe {
        write_rows([x.len() / d.max(1), d], |rows, y| {
            let x = &x[rows.start * d..rows.end * d];
            match Isa::detect() {
                // SAFETY: the CPU feature was detected; rows are whole.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => cpu_avx512::forward(x, weight, eps, y),
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 if d.is_multiple_of(8) => cpu_avx2::forward(x, weight, eps, y),
                _ => forward(x, weight, eps, y),
            }
        })
    }
}

/// Gradient of `x`, `[n, d]`.
pub(super) fn rms_norm_gradient<T: Number>(
    x: &[f32],
    weight: &[f32],
    dy: &[T],
    eps: f32,
) -> Buffer<f32> {
    let d = weight.len();
    // SAFETY: `backward` writes every element of its target.
    unsafe {
        write_rows([x.len() / d.max(1), d], |rows, dx| {
            let run = rows.start * d..rows.end * d;
            let rows = BackwardRows {
                x: &x[run.clone()],
                weight,
                dy: &dy[run],
                eps,
            };
            match Isa::detect() {
                // SAFETY: the CPU feature was detected; rows are whole.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => cpu_avx512::backward(rows, dx),
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 if d.is_multiple_of(8) => cpu_avx2::backward(rows, dx),
                _ => backward(rows, dx),
            }
        })
    }
}

/// Rows of the backward pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct BackwardRows<'a, T> {
    pub(super) x: &'a [f32],
    pub(super) weight: &'a [f32],
    /// Gradients of the outputs.
    pub(super) dy: &'a [T],
    pub(super) eps: f32,
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_pairs(x, x, |a, b| a * b) / x.len() as f32 + eps).sqrt()
}

for_each_isa! {
    fn forward[T: Number](x: &[f32], weight: &[f32], eps: f32, y: &mut [MaybeUninit<T>]) {
        let d = weight.len();
        for (x, y) in x.chunks_exact(d).zip(y.chunks_exact_mut(d)) {
            let scale = inverse_rms(x, eps);
            for ((y, &x), &w) in y.iter_mut().zip(x).zip(weight) {
                y.write(T::narrow(x * scale * w));
            }
        }
    }
}

for_each_isa! {
    fn backward[T: Number](rows: BackwardRows<'_, T>, dx: &mut [MaybeUninit<f32>]) {
        let BackwardRows { x, weight, dy, eps } = rows;
        let d = weight.len();
        for ((x, dy), dx) in x.chunks_exact(d).zip(dy.chunks_exact(d)).zip(dx.chunks_exact_mut(d)) {
            let scale = inverse_rms(x, eps);
            // `dx` holds `dy * w` until the row's sum is known.
            for ((dx, dy), &w) in dx.iter_mut().zip(dy).zip(weight) {
                dx.write(dy.widen() * w);
            }
            // SAFETY: the loop above wrote the whole row.
            let dx = unsafe { dx.assume_init_mut() };
            let projection = sum_of_pairs(dx, x, |a, b| a * b) * scale * scale / d as f32;
            for (dx, &x) in dx.iter_mut().zip(x) {
                *dx = scale * (*dx - projection * x);
            }
        }
    }
}
