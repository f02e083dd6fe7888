//! Chunks of the loss on slices, with the head packed.
//!
//! Logits stay f32 until the softmax is done; their gradient is rounded to the head's type, as
//! every other gradient between operations.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::Supervision;
use crate::cpu::exp::exp;
use crate::cpu::isa::for_each_isa;
use crate::cpu::packed::operand::Operand;
use crate::cpu::packed::panels::Panels;
use crate::cpu::packed::product::{Output, Rows, Sum, Term, evened, for_row_blocks};
use crate::cpu::pool::Buffer;
use crate::cpu::shared::Shared;
use crate::frozen_weight::PackedMatrix;

/// Partial maxima and sums side by side.
const LANES: usize = 32;
/// Logits whose maximum and sum are found together: 16 KiB, in the first level of cache.
const PART: usize = 4096;

/// The rows of a micro-batch, cut into chunks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunks<'a, T> {
    /// `[m, d]`.
    pub(super) hidden: &'a [T],
    /// `[v, d]`.
    pub(super) head: &'a PackedMatrix<T>,
    pub(super) chunk_rows: usize,
}

/// `hidden headᵀ`, `[m, v]`.
pub(super) fn logits<T: Operand>(hidden: &[T], head: &PackedMatrix<T>) -> Buffer<f32> {
    let panels = head.forward();
    let m = hidden.len() / panels.depth().max(1);
    // SAFETY: the product replaces every element.
    unsafe {
        Buffer::filled(m * panels.columns(), |to| {
            let (hidden, stride) = evened(hidden, panels.depth());
            multiply((&hidden, stride), panels, to);
        })
    }
}

/// Rows, `stride` apart, times panels.
fn multiply<T: Operand>(
    (left, stride): (&[T], usize),
    panels: &Panels<T>,
    to: &mut [MaybeUninit<f32>],
) {
    let (n, columns) = (left.len() / stride, panels.columns());
    let to = Shared::new(to);
    for_row_blocks::<T, f32>(n, panels.depth(), |rows, spread| {
        // SAFETY: blocks of rows are disjoint.
        let to = unsafe { to.slice(rows.start * columns, rows.len() * columns) };
        Sum {
            terms: &[Term {
                left: Rows::new(&left[rows.start * stride..rows.end * stride], stride, 0),
                right: panels,
            }],
            bias: None,
            residual: None,
            output: Output::new(to, columns),
        }
        .run(spread);
    });
}

impl<T: Operand> Chunks<'_, T> {
    /// Weighted sum of the losses, and the gradient of it times `gradient_scale`, `[m, d]`.
    pub(super) fn loss_and_gradient(
        &self,
        supervision: &Supervision,
        gradient_scale: f64,
    ) -> (f64, Vec<T>) {
        let mut d_hidden = Vec::with_capacity(self.hidden.len());
        let mut loss_sum = 0.0;
        for (hidden, part) in self.parts(supervision) {
            let mut values = logits(hidden, self.head);
            let sums = softmax_sums(&values, part.targets.len());
            loss_sum += loss(&values, &sums, &part);
            d_hidden.extend(self.gradient(&mut values, &sums, &part, gradient_scale));
        }
        (loss_sum, d_hidden)
    }

    /// Weighted sum of the losses.
    pub(super) fn loss(&self, supervision: &Supervision) -> f64 {
        self.parts(supervision)
            .map(|(hidden, part)| {
                let values = logits(hidden, self.head);
                loss(&values, &softmax_sums(&values, part.targets.len()), &part)
            })
            .sum()
    }

    fn parts(&self, supervision: &Supervision) -> impl Iterator<Item = (&[T], Supervision)> {
        let (m, d) = (supervision.rows.len(), self.head.forward().depth());
        let starts = (0..m).step_by(self.chunk_rows);
        starts.map(move |start| {
            let end = (start + self.chunk_rows).min(m);
            (
                &self.hidden[start * d..end * d],
                supervision.part(start..end),
            )
        })
    }

    /// Gradient of the hidden states of a chunk.
    fn gradient(
        &self,
        logits: &mut [f32],
        sums: &[RowSum],
        part: &Supervision,
        gradient_scale: f64,
    ) -> Vec<T> {
        let panels = self.head.backward();
        let (vocabulary, d) = (panels.depth(), panels.columns());
        let even = vocabulary.next_multiple_of(T::DEPTHS);
        let mut d_logits = Buffer::repeated(T::ZERO, sums.len() * even);
        let rows = d_logits
            .par_chunks_mut(even)
            .zip(logits.par_chunks(vocabulary));
        rows.enumerate().for_each(|(row, (to, logits))| {
            let scale = (f64::from(part.weights[row]) * gradient_scale) as f32;
            let sum = sums[row];
            probabilities(logits, sum.maximum, scale / sum.sum, &mut to[..vocabulary]);
            let target = part.targets[row] as usize;
            let p = exp(logits[target] - sum.maximum) / sum.sum;
            to[target] = T::narrow((p - 1.0) * scale);
        });
        // SAFETY: the product replaces every element.
        let wide: Buffer<f32> =
            unsafe { Buffer::filled(sums.len() * d, |to| multiply((&d_logits, even), panels, to)) };
        wide.iter().copied().map(T::narrow).collect()
    }
}

/// Maximum of a row and the sum of its exponentials above that.
#[derive(Debug, Clone, Copy)]
struct RowSum {
    maximum: f32,
    sum: f32,
}

fn softmax_sums(logits: &[f32], rows: usize) -> Vec<RowSum> {
    let vocabulary = logits.len().checked_div(rows).unwrap_or(1).max(1);
    logits.par_chunks(vocabulary).map(row_sum).collect()
}

fn loss(logits: &[f32], sums: &[RowSum], part: &Supervision) -> f64 {
    let vocabulary = logits.len().checked_div(sums.len()).unwrap_or(0);
    sums.iter()
        .enumerate()
        .map(|(row, sum)| {
            let logit = logits[row * vocabulary + part.targets[row] as usize];
            let log_p = logit - sum.maximum - sum.sum.ln();
            -f64::from(log_p) * f64::from(part.weights[row])
        })
        .sum()
}

for_each_isa! {
    /// Part after part, so that a row comes from memory once.
    fn row_sum(logits: &[f32]) -> RowSum {
        let mut row = RowSum { maximum: f32::NEG_INFINITY, sum: 0.0 };
        for part in logits.chunks(PART) {
            let mut maxima = [f32::NEG_INFINITY; LANES];
            for line in part.chunks(LANES) {
                for (maximum, &x) in maxima.iter_mut().zip(line) {
                    *maximum = if x > *maximum { x } else { *maximum };
                }
            }
            let maximum = maxima.into_iter().fold(row.maximum, f32::max);
            // What is -∞ alone would give NaN where its exponentials are 0.
            let subtracted = if maximum == f32::NEG_INFINITY { 0.0 } else { maximum };
            let mut sums = [0.0f32; LANES];
            for line in part.chunks(LANES) {
                for (sum, &x) in sums.iter_mut().zip(line) {
                    *sum += exp(x - subtracted);
                }
            }
            let before = row.sum * exp(row.maximum - subtracted);
            row = RowSum { maximum, sum: before + sums.into_iter().sum::<f32>() };
        }
        if row.maximum == f32::NEG_INFINITY {
            row.maximum = 0.0;
        }
        row
    }
}

for_each_isa! {
    fn probabilities[T: Operand](logits: &[f32], maximum: f32, factor: f32, to: &mut [T]) {
        for (to, &x) in to.iter_mut().zip(logits) {
            *to = T::narrow(exp(x - maximum) * factor);
        }
    }
}
