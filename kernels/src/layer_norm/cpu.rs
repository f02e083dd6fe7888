//! Layer norm on slices. The backward pass recomputes the normalised rows from the input, or from
//! the output, which the next layer stores anyway.

use std::mem::MaybeUninit;

use crate::cpu::isa::for_each_isa;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::{map_tasks, write_rows};
use crate::cpu::shared::Shared;
use crate::cpu::sum::sum_of_pairs;

/// Rows per task for the weight and bias gradients.
const TASK_ROWS: usize = 256;

/// Largest ratio of a bias to its weight for which normalised values are recomputed from the
/// output: the rounding error of the output is amplified by this ratio, here to at most 4e-6 of a
/// standard deviation.
const LARGEST_SHIFT: f32 = 64.0;

/// Source of the normalised rows in the backward pass.
#[derive(Debug, Clone, Copy)]
pub(super) enum SavedActivation<'a> {
    /// The input, `[n, d]`.
    Input(&'a [f32]),
    /// The output, `[n, d]`, the inverse standard deviations of the input, `[n]`, and the bias.
    Output(&'a [f32], &'a [f32], &'a [f32]),
}

/// Whether recomputing the normalised values from the output loses almost no precision.
pub(super) fn is_invertible(weight: &[f32], bias: &[f32]) -> bool {
    let mut both = weight.iter().zip(bias);
    both.all(|(w, b)| w.is_normal() && b.abs() <= LARGEST_SHIFT * w.abs())
}

/// Normalises `[n, d]`; also returns the inverse standard deviations, `[n]`.
pub(super) fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32) -> [Buffer<f32>; 2] {
    let d = weight.len();
    let n = x.len() / d.max(1);
    let mut scales = Buffer::repeated(0.0, n);
    let all_scales = Shared::new(&mut scales);
    // SAFETY: `forward` writes every element of its target; each run has its own scales.
    let y = unsafe {
        write_rows([n, d], |rows, y| {
            let scales = all_scales.slice(rows.start, rows.len());
            let x = &x[rows.start * d..rows.end * d];
            forward(x, weight, bias, eps, y, scales);
        })
    };
    [y, scales]
}

/// Gradients of `x`, `[n, d]`, of the weight and of the bias, `[d]`.
pub(super) fn layer_norm_gradients(
    run_inputs: SavedActivation<'_>,
    weight: &[f32],
    eps: f32,
    dy: &[f32],
) -> [Buffer<f32>; 3] {
    let d = weight.len();
    let n = dy.len() / d.max(1);
    let tasks: Vec<usize> = (0..n).step_by(TASK_ROWS).collect();
    let mut partial = Vec::new();
    // SAFETY: the tasks cover all rows, and `backward` writes every element of its target.
    let dx = unsafe {
        Buffer::filled(n * d, |dx| {
            let dx = Shared::new(dx);
            partial = map_tasks(&tasks, |&first| {
                let rows = first..(first + TASK_ROWS).min(n);
                let run = rows.start * d..rows.end * d;
                let mut sums = vec![0.0f32; 2 * d];
                let dx = dx.slice(run.start, run.len());
                let run_inputs = match run_inputs {
                    SavedActivation::Input(x) => SavedActivation::Input(&x[run.clone()]),
                    SavedActivation::Output(y, scales, bias) => {
                        SavedActivation::Output(&y[run.clone()], &scales[rows], bias)
                    }
                };
                backward(run_inputs, weight, eps, &dy[run], dx, &mut sums);
                sums
            });
        })
    };
    // Summed in row order, independent of the threads.
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
        weight: &[f32],
        bias: &[f32],
        eps: f32,
        y: &mut [MaybeUninit<f32>],
        scales: &mut [f32],
    ) {
        let d = weight.len();
        for ((x, y), kept) in x.chunks_exact(d).zip(y.chunks_exact_mut(d)).zip(scales) {
            let (mean, scale) = moments(x, eps);
            *kept = scale;
            for (((y, &x), &w), &b) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                y.write((x - mean) * scale * w + b);
            }
        }
    }
}

for_each_isa! {
    /// Writes the gradient of `x`, and adds to the sums of the weight and, after them, the bias.
    fn backward(
        kept: SavedActivation<'_>,
        weight: &[f32],
        eps: f32,
        dy: &[f32],
        dx: &mut [MaybeUninit<f32>],
        sums: &mut [f32],
    ) {
        let d = weight.len();
        let (d_weight, d_bias) = sums.split_at_mut(d);
        let inverse: Vec<f32> = weight.iter().map(|w| 1.0 / w).collect();
        let mut normed = vec![0.0f32; d];
        let rows = dy.chunks_exact(d).zip(dx.chunks_exact_mut(d));
        for (row, (dy, dx)) in rows.enumerate() {
            let run = row * d..(row + 1) * d;
            let scale = match kept {
                SavedActivation::Input(x) => {
                    let (mean, scale) = moments(&x[run.clone()], eps);
                    let values = normed.iter_mut().zip(&x[run]);
                    values.for_each(|(normed, x)| *normed = (x - mean) * scale);
                    scale
                }
                SavedActivation::Output(y, scales, bias) => {
                    let values = normed.iter_mut().zip(&y[run]).zip(bias).zip(&inverse);
                    values.for_each(|(((normed, y), b), inverse)| *normed = (y - b) * inverse);
                    scales[row]
                }
            };
            // `dx` holds the gradient of the normalised value until the row's sums are known.
            for (i, dx) in dx.iter_mut().enumerate() {
                d_weight[i] += dy[i] * normed[i];
                d_bias[i] += dy[i];
                dx.write(dy[i] * weight[i]);
            }
            // SAFETY: the loop above wrote the whole row.
            let dx = unsafe { dx.assume_init_mut() };
            let average = sum_of_pairs(dx, &normed, |g, _| g) / d as f32;
            let projection = sum_of_pairs(dx, &normed, |g, x| g * x) / d as f32;
            for (dx, &normed) in dx.iter_mut().zip(&normed) {
                *dx = scale * (*dx - average - normed * projection);
            }
        }
    }
}
