//! Layer norm on slices; the backward pass computes mean and variance again instead of keeping
//! them.

use std::mem::MaybeUninit;

use crate::cpu::isa::for_each_isa;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::{map_tasks, write_rows};
use crate::cpu::shared::Shared;
use crate::cpu::sum::sum_of_pairs;

/// Rows whose sums for weight and bias one task keeps.
const TASK_ROWS: usize = 256;

/// `[n, d]` to `[n, d]`.
pub(super) fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32) -> Buffer<f32> {
    let d = weight.len();
    // SAFETY: `forward` writes every element of its target.
    unsafe {
        write_rows([x.len() / d.max(1), d], |rows, y| {
            forward(&x[rows.start * d..rows.end * d], (weight, bias), eps, y);
        })
    }
}

/// Gradients of `x`, `[n, d]`, of the weight and of the bias, `[d]`.
pub(super) fn layer_norm_gradients(
    x: &[f32],
    weight: &[f32],
    eps: f32,
    dy: &[f32],
) -> [Buffer<f32>; 3] {
    let d = weight.len();
    let n = x.len() / d.max(1);
    let tasks: Vec<usize> = (0..n).step_by(TASK_ROWS).collect();
    let mut partial = Vec::new();
    // SAFETY: the tasks cover all rows, and `backward` writes every element of its target.
    let dx = unsafe {
        Buffer::filled(n * d, |dx| {
            let dx = Shared::new(dx);
            partial = map_tasks(&tasks, |&first| {
                let run = first * d..(first + TASK_ROWS).min(n) * d;
                let mut sums = vec![0.0f32; 2 * d];
                let dx = dx.slice(run.start, run.len());
                backward(&x[run.clone()], weight, eps, &dy[run], (dx, &mut sums));
                sums
            });
        })
    };
    // In order of the rows, whoever computed them.
    let [mut d_weight, mut d_bias] = [0, 1].map(|_| Buffer::repeated(0.0, d));
    for sums in &partial {
        for (i, (d_weight, d_bias)) in d_weight.iter_mut().zip(d_bias.iter_mut()).enumerate() {
            *d_weight += sums[i];
            *d_bias += sums[d + i];
        }
    }
    [dx, d_weight, d_bias]
}

/// Mean and inverse standard deviation.
#[inline(always)]
fn moments(x: &[f32], eps: f32) -> (f32, f32) {
    let n = x.len() as f32;
    let mean = sum_of_pairs(x, x, |a, _| a) / n;
    let variance = sum_of_pairs(x, x, |a, _| (a - mean) * (a - mean)) / n;
    (mean, 1.0 / (variance + eps).sqrt())
}

for_each_isa! {
    fn forward(
        x: &[f32],
        affine: (&[f32], &[f32]),
        eps: f32,
        y: &mut [MaybeUninit<f32>],
    ) {
        let (weight, bias) = affine;
        let d = weight.len();
        for (x, y) in x.chunks_exact(d).zip(y.chunks_exact_mut(d)) {
            let (mean, scale) = moments(x, eps);
            for (((y, &x), &w), &b) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                y.write((x - mean) * scale * w + b);
            }
        }
    }
}

for_each_isa! {
    /// Writes the gradient of `x`, and adds to the sums of the weight and, behind them, the bias.
    fn backward(
        x: &[f32],
        weight: &[f32],
        eps: f32,
        dy: &[f32],
        to: (&mut [MaybeUninit<f32>], &mut [f32]),
    ) {
        let d = weight.len();
        let (dx, (d_weight, d_bias)) = (to.0, to.1.split_at_mut(d));
        let rows = x.chunks_exact(d).zip(dy.chunks_exact(d));
        for ((x, dy), dx) in rows.zip(dx.chunks_exact_mut(d)) {
            let (mean, scale) = moments(x, eps);
            // `dx` holds the gradient of the normed value until the row's sums are known.
            for (i, dx) in dx.iter_mut().enumerate() {
                let normed = (x[i] - mean) * scale;
                d_weight[i] += dy[i] * normed;
                d_bias[i] += dy[i];
                dx.write(dy[i] * weight[i]);
            }
            // SAFETY: the loop above wrote the whole row.
            let dx = unsafe { dx.assume_init_mut() };
            let average = sum_of_pairs(dx, x, |g, _| g) / d as f32;
            let along = sum_of_pairs(dx, x, |g, x| g * (x - mean)) * scale * scale / d as f32;
            for (dx, &x) in dx.iter_mut().zip(x) {
                *dx = scale * (*dx - average - (x - mean) * along);
            }
        }
    }
}
