//! Chunks of the loss on slices, with a packed LM head.
//!
//! Logits are f32 and short-lived: as soon as some columns are computed, they are replaced by
//! exponentials relative to their own maximum, in the head's dtype. These differ from probabilities
//! by one factor per row and group of columns, which is known at the end.

use std::mem::MaybeUninit;
use std::ops::Range;

use rayon::prelude::*;

use super::Supervision;
use crate::cpu::exp::exp;
use crate::cpu::isa::for_each_isa;
use crate::cpu::packed::convert::narrow_slice;
use crate::cpu::packed::operand::Operand;
use crate::cpu::packed::panels::{COLUMNS, Panels};
use crate::cpu::packed::product::{Output, Panelled, Spread, Sum, Term, for_row_blocks};
use crate::cpu::packed::rows::{Rows, pad_rows_to_words};
use crate::cpu::packed::uninitialised;
use crate::cpu::pool::Buffer;
use crate::cpu::scratch::{with_numbers, with_scratch};
use crate::cpu::shared::Shared;
use crate::frozen_weight::PackedMatrix;

/// Parallel partial maxima and sums.
const LANES: usize = 32;
/// Panels of the head per group of logits with its own maximum: for 128 rows they fit in the L2
/// cache.
const PART_PANELS: usize = 16;
/// Columns per part.
const PART: usize = PART_PANELS * COLUMNS;
/// Columns whose gradients are multiplied with the head at a time.
const GRADIENT_COLUMNS: usize = 3 * PART;

/// The rows of a micro-batch, split into chunks.
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
            let (hidden, stride) = pad_rows_to_words(hidden, panels.depth());
            multiply(&hidden, stride, panels, to);
        })
    }
}

/// Multiplies rows, `stride` apart, with panels.
fn multiply<T: Operand>(
    row_values: &[T],
    stride: usize,
    panels: &Panels<T>,
    to: &mut [MaybeUninit<f32>],
) {
    let (n, columns) = (row_values.len() / stride, panels.columns());
    let to = Shared::new(to);
    for_row_blocks::<T, f32>(n, panels.depth(), |rows, spread| {
        // SAFETY: blocks of rows are disjoint.
        let to = unsafe { to.slice(rows.start * columns, rows.len() * columns) };
        Sum {
            terms: &[Term::new(
                Rows::new(
                    &row_values[rows.start * stride..rows.end * stride],
                    stride,
                    0,
                ),
                panels,
            )],
            panels: Panelled::All,
            bias: None,
            residual: None,
            output: Output::new(to, columns),
        }
        .run(spread);
    });
}

impl<T: Operand> Chunks<'_, T> {
    /// Weighted sum of the losses, and its gradient times `gradient_scale`, `[m, d]`.
    pub(super) fn loss_and_gradient(
        &self,
        supervision: &Supervision,
        gradient_scale: f64,
    ) -> (f64, Vec<T>) {
        let mut d_hidden = Vec::with_capacity(self.hidden.len());
        let mut loss_sum = 0.0;
        let vocabulary = self.head.forward().columns();
        for (hidden, part) in self.parts(supervision) {
            let mut softmax = None;
            // SAFETY: the softmax writes the exponentials of every column.
            let exponentials: Buffer<T> = unsafe {
                Buffer::filled(part.targets.len() * vocabulary, |to| {
                    softmax = Some(self.softmax(hidden, &part, Some(Shared::new(to))));
                })
            };
            let softmax = softmax.expect("computed above");
            loss_sum += softmax.loss(&part);
            let gradient = Gradient {
                softmax: &softmax,
                exponentials: &exponentials,
                part: &part,
                scale: gradient_scale,
            };
            d_hidden.extend(gradient.hidden_gradient(self.head.kept_backward()));
        }
        (loss_sum, d_hidden)
    }

    /// Weighted sum of the losses.
    pub(super) fn loss(&self, supervision: &Supervision) -> f64 {
        self.parts(supervision)
            .map(|(hidden, part)| self.softmax(hidden, &part, None).loss(&part))
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

    /// Computes the logits of some rows part by part, and stores their exponentials in `kept`, `[m,
    /// v]`, if given.
    fn softmax(
        &self,
        hidden: &[T],
        supervision: &Supervision,
        logits_out: Option<Shared<'_, MaybeUninit<T>>>,
    ) -> Softmax {
        let panels = self.head.forward();
        let m = supervision.targets.len();
        let (hidden, stride) = pad_rows_to_words(hidden, panels.depth());
        let hidden = Rows::new(&hidden, stride, 0);
        let parts = panels.len().div_ceil(PART_PANELS);
        let softmax_parts: Vec<Part> = (0..parts)
            .into_par_iter()
            .map(|part| {
                let first = part * PART_PANELS;
                let n_panels = PART_PANELS.min(panels.len() - first);
                let columns = (panels.columns() - part * PART).min(PART);
                with_scratch(m * columns, |logits| {
                    Sum {
                        terms: &[Term::new(hidden, panels)],
                        panels: Panelled::Some(first, n_panels),
                        bias: None,
                        residual: None,
                        output: Output::new(uninitialised(&mut *logits), columns),
                    }
                    .run(Spread::OneThread);
                    let target_logits =
                        supervision.target_logits(part * PART..part * PART + columns, logits);
                    let rows = logits.chunks_exact_mut(columns).enumerate();
                    let row_of = |(row, logits): (usize, &mut [f32])| {
                        let row_sum = exponentiate(logits);
                        if let Some(logits_out) = &logits_out {
                            let first = row * panels.columns() + part * PART;
                            // SAFETY: only this task writes these columns.
                            narrow_slice(logits, unsafe { logits_out.slice(first, columns) });
                        }
                        row_sum
                    };
                    Part {
                        rows: rows.map(row_of).collect(),
                        target_logits,
                    }
                })
            })
            .collect();
        Softmax::new(softmax_parts, m)
    }
}

impl Supervision {
    /// The rows whose target is in `columns`, with the target's logit; `logits` has these columns.
    fn target_logits(&self, columns: Range<usize>, logits: &[f32]) -> Vec<(usize, f32)> {
        let targets = self.targets.iter().enumerate();
        targets
            .filter(|(_, id)| columns.contains(&(**id as usize)))
            .map(|(row, &id)| {
                let column = id as usize - columns.start;
                (row, logits[row * columns.len() + column])
            })
            .collect()
    }
}

/// Maximum of some logits, and the sum of their exponentials relative to it.
#[derive(Debug, Clone, Copy)]
struct RowSum {
    maximum: f32,
    sum: f32,
}

/// Result for a part of the columns.
#[derive(Debug)]
struct Part {
    rows: Vec<RowSum>,
    /// Rows whose target is in this part, with its logit.
    target_logits: Vec<(usize, f32)>,
}

/// The softmax of some rows.
#[derive(Debug)]
struct Softmax {
    parts: Vec<Part>,
    /// Over all columns.
    rows: Vec<RowSum>,
    /// The logit of each row's target.
    target_logits: Vec<f32>,
}

impl Softmax {
    /// # Panics
    ///
    /// If a target is not in the vocabulary.
    fn new(parts: Vec<Part>, m: usize) -> Self {
        let mut target_logits = vec![None; m];
        for &(row, logit) in parts.iter().flat_map(|part| &part.target_logits) {
            target_logits[row] = Some(logit);
        }
        let row_of = |row: usize| {
            let row_parts = || parts.iter().map(|part| part.rows[row]);
            let maximum = row_parts().map(|part| part.maximum);
            let maximum = finite(maximum.fold(f32::NEG_INFINITY, f32::max));
            let sums = row_parts().map(|part| part.sum * exp(finite(part.maximum) - maximum));
            RowSum {
                maximum,
                sum: sums.sum(),
            }
        };
        Self {
            rows: (0..m).map(row_of).collect(),
            target_logits: target_logits
                .into_iter()
                .map(|logit| logit.expect("every target is in the vocabulary"))
                .collect(),
            parts,
        }
    }

    fn loss(&self, supervision: &Supervision) -> f64 {
        let rows = self.rows.iter().zip(&self.target_logits);
        rows.zip(&supervision.weights)
            .map(|((row, logit), weight)| {
                let log_p = logit - row.maximum - row.sum.ln();
                -f64::from(log_p) * f64::from(*weight)
            })
            .sum()
    }
}

/// The value to subtract before exponentiating: the maximum, or 0 if it is `-∞`, because
/// subtracting `-∞` would give NaN.
#[inline(always)]
fn finite(maximum: f32) -> f32 {
    if maximum == f32::NEG_INFINITY {
        0.0
    } else {
        maximum
    }
}

/// Computes the gradient of the hidden states from the exponentials.
struct Gradient<'a, T> {
    softmax: &'a Softmax,
    /// `[m, v]`.
    exponentials: &'a [T],
    part: &'a Supervision,
    scale: f64,
}

impl<T: Operand> Gradient<'_, T> {
    /// `panels` are the panels of the head for `dy W`.
    fn hidden_gradient(&self, panels: &Panels<T>) -> Vec<T> {
        let (m, d) = (self.part.targets.len(), panels.columns());
        // SAFETY: each block writes all of its rows.
        let wide: Buffer<f32> = unsafe {
            Buffer::filled(m * d, |to| {
                let to = Shared::new(to);
                for_row_blocks::<T, f32>(m, panels.depth(), |rows, spread| {
                    let to = to.slice(rows.start * d, rows.len() * d);
                    to.fill(MaybeUninit::new(0.0));
                    self.add_products(rows, panels, to.assume_init_mut(), spread);
                });
            })
        };
        wide.iter().copied().map(T::narrow).collect()
    }

    /// Adds the products of the logit gradients and the head, some columns at a time.
    fn add_products(&self, rows: Range<usize>, panels: &Panels<T>, to: &mut [f32], spread: Spread) {
        let (vocabulary, d) = (panels.depth(), panels.columns());
        for start in (0..vocabulary).step_by(GRADIENT_COLUMNS) {
            let columns = start..(start + GRADIENT_COLUMNS).min(vocabulary);
            let width = columns.len().next_multiple_of(T::DEPTHS);
            with_numbers(rows.len() * width, |gradients: &mut [T]| {
                for (row, to) in rows.clone().zip(gradients.chunks_exact_mut(width)) {
                    to[columns.len()..].fill(T::ZERO);
                    self.logit_gradients(row, columns.clone(), &mut to[..columns.len()]);
                }
                Sum {
                    terms: &[Term::with_depths(
                        Rows::new(gradients, width, 0),
                        panels,
                        columns.clone(),
                    )],
                    panels: Panelled::All,
                    bias: None,
                    residual: None,
                    output: Output::sums(to, d),
                }
                .run(spread);
            });
        }
    }

    /// Gradients of the logits of a row.
    fn logit_gradients(&self, row: usize, columns: Range<usize>, to: &mut [T]) {
        let scale = (f64::from(self.part.weights[row]) * self.scale) as f32;
        let RowSum { maximum, sum } = self.softmax.rows[row];
        let vocabulary = self.exponentials.len() / self.part.targets.len();
        let from = &self.exponentials[row * vocabulary..][columns.clone()];
        for (i, (from, to)) in from.chunks(PART).zip(to.chunks_mut(PART)).enumerate() {
            let part = self.softmax.parts[columns.start / PART + i].rows[row];
            let factor = exp(finite(part.maximum) - maximum) / sum * scale;
            rescale(from, factor, to);
        }
        let target = self.part.targets[row] as usize;
        if columns.contains(&target) {
            let p = exp(self.softmax.target_logits[row] - maximum) / sum;
            to[target - columns.start] = T::narrow((p - 1.0) * scale);
        }
    }
}

for_each_isa! {
    /// Replaces logits by exponentials relative to their maximum.
    fn exponentiate(logits: &mut [f32]) -> RowSum {
        let mut maxima = [f32::NEG_INFINITY; LANES];
        for line in logits.chunks(LANES) {
            for (maximum, &x) in maxima.iter_mut().zip(line) {
                *maximum = if x > *maximum { x } else { *maximum };
            }
        }
        let maximum = maxima.into_iter().fold(f32::NEG_INFINITY, f32::max);
        let subtracted = finite(maximum);
        let mut sums = [0.0f32; LANES];
        for line in logits.chunks_mut(LANES) {
            for (sum, x) in sums.iter_mut().zip(line) {
                *x = exp(*x - subtracted);
                *sum += *x;
            }
        }
        RowSum {
            maximum,
            sum: sums.into_iter().sum(),
        }
    }
}

for_each_isa! {
    /// Flushes subnormal products to 0; [`exp`] explains why.
    fn rescale[T: Operand](from: &[T], factor: f32, to: &mut [T]) {
        let least = f32::MIN_POSITIVE / factor.abs();
        for (to, from) in to.iter_mut().zip(from) {
            let from = from.widen();
            let from = if from < least { 0.0 } else { from };
            *to = T::narrow(from * factor);
        }
    }
}
