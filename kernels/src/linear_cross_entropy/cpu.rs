//! A chunk of the loss on slices, with the logits transposed: `[v, m]`.
//!
//! That way the head is read in the order in which it lies, both for the logits and for the
//! gradient of the hidden states, and never packed; and the softmax of all rows of the chunk runs
//! side by side in vectors.

use rayon::prelude::*;

use super::Supervision;
use crate::cpu::exp::exp;
use crate::cpu::gemm::gemm;
use crate::cpu::isa::for_each_isa;
use crate::cpu::matrix::{Matrix, MatrixMut};

/// Vocabulary entries whose maximum and sum one task finds.
const PART: usize = 1024;

/// The rows of a micro-batch, cut into chunks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunks<'a> {
    /// `[m, d]`.
    pub(super) hidden: Matrix<'a>,
    /// `[v, d]`.
    pub(super) head: Matrix<'a>,
    pub(super) chunk_rows: usize,
}

impl Chunks<'_> {
    /// Weighted sum of the losses, and the gradient of it times `gradient_scale`, `[m, d]`.
    pub(super) fn loss_and_gradient(
        &self,
        supervision: &Supervision,
        gradient_scale: f64,
    ) -> (f64, Vec<f32>) {
        let (m, d) = (self.hidden.rows(), self.hidden.columns());
        let mut chunk = Chunk::default();
        let mut d_hidden = vec![0.0; m * d];
        let mut loss_sum = 0.0;
        for start in (0..m).step_by(self.chunk_rows) {
            let rows = start..(start + self.chunk_rows).min(m);
            let part = supervision.part(rows.clone());
            loss_sum += chunk.loss(self.hidden.part(rows.clone()), self.head, &part);
            let target = &mut d_hidden[rows.start * d..rows.end * d];
            let target = MatrixMut::replace(target, [rows.len(), d], d);
            chunk.d_hidden(self.head, &part, gradient_scale, target);
        }
        (loss_sum, d_hidden)
    }

    /// Weighted sum of the losses.
    pub(super) fn loss(&self, supervision: &Supervision) -> f64 {
        let m = self.hidden.rows();
        let mut chunk = Chunk::default();
        (0..m)
            .step_by(self.chunk_rows)
            .map(|start| {
                let rows = start..(start + self.chunk_rows).min(m);
                let part = supervision.part(rows.clone());
                chunk.loss(self.hidden.part(rows), self.head, &part)
            })
            .sum()
    }
}

/// Logits of one chunk and what its softmax needs; reused for each chunk.
#[derive(Debug, Default)]
struct Chunk {
    /// `[v, m]`: logits, then exponentials, then gradients.
    values: Vec<f32>,
    m: usize,
    /// Of each part: maximum and sum of each row, `[parts, 2, m]`.
    statistics: Vec<f32>,
}

impl Chunk {
    /// The loss of `hidden`, `[m, d]`, under `head`, `[v, d]`, in nats.
    ///
    /// # Panics
    ///
    /// If a target is not in the vocabulary.
    fn loss(&mut self, hidden: Matrix<'_>, head: Matrix<'_>, part: &Supervision) -> f64 {
        let m = hidden.rows();
        self.m = m;
        self.values.resize(head.rows() * m, 0.0);
        let logits = MatrixMut::replace(&mut self.values, [head.rows(), m], m);
        gemm(logits, &[(head, hidden.transposed())]);
        let picked: Vec<f32> = part
            .targets
            .iter()
            .enumerate()
            .map(|(i, &id)| self.values[id as usize * m + i])
            .collect();
        self.exponentiate();
        (0..m)
            .map(|i| {
                let (maximum, sum) = self.row_statistics(i);
                let log_p = picked[i] - maximum - sum.ln();
                -f64::from(log_p) * f64::from(part.weights[i])
            })
            .sum()
    }

    /// The gradient for the hidden states, after [`Self::loss`] of the same chunk.
    fn d_hidden(
        &mut self,
        head: Matrix<'_>,
        part: &Supervision,
        gradient_scale: f64,
        d_hidden: MatrixMut<'_>,
    ) {
        let m = self.m;
        let scales: Vec<f32> = part
            .weights
            .iter()
            .map(|w| (f64::from(*w) * gradient_scale) as f32)
            .collect();
        let totals: Vec<(f32, f32)> = (0..m).map(|i| self.row_statistics(i)).collect();
        self.values
            .par_chunks_mut(PART * m)
            .zip(self.statistics.par_chunks(2 * m))
            .for_each(|(values, statistics)| {
                let factors: Vec<f32> = (0..m)
                    .map(|i| {
                        let (maximum, sum) = totals[i];
                        exp(finite_maximum(statistics[i]) - maximum) / sum * scales[i]
                    })
                    .collect();
                multiply_rows(values, &factors);
            });
        for (i, &id) in part.targets.iter().enumerate() {
            self.values[id as usize * m + i] -= scales[i];
        }
        let d_logits = Matrix::of_rows(&self.values, m).transposed();
        gemm(d_hidden, &[(d_logits, head)]);
    }

    /// Turns each part of the logits into exponentials above the part's own maximum.
    fn exponentiate(&mut self) {
        let m = self.m;
        let parts = self.values.len().div_ceil(PART * m);
        self.statistics.resize(parts * 2 * m, 0.0);
        self.values
            .par_chunks_mut(PART * m)
            .zip(self.statistics.par_chunks_mut(2 * m))
            .for_each(|(values, statistics)| {
                let (maximum, sum) = statistics.split_at_mut(m);
                exponentiate_part(values, maximum, sum);
            });
    }

    /// Maximum of row `i` and the sum of its exponentials above that.
    fn row_statistics(&self, i: usize) -> (f32, f32) {
        let parts = || self.statistics.chunks(2 * self.m);
        let maximum = finite_maximum(
            parts()
                .map(|part| part[i])
                .fold(f32::NEG_INFINITY, f32::max),
        );
        let sum = parts()
            .map(|part| exp(finite_maximum(part[i]) - maximum) * part[self.m + i])
            .sum();
        (maximum, sum)
    }
}

/// What is subtracted before exponentiating: a maximum of `-∞` would make NaN of what is 0.
#[inline(always)]
fn finite_maximum(maximum: f32) -> f32 {
    if maximum == f32::NEG_INFINITY {
        0.0
    } else {
        maximum
    }
}

for_each_isa! {
    /// `values`, `[part, m]`, to exponentials above their maximum over the part, which is found
    /// with their sum.
    fn exponentiate_part(values: &mut [f32], maximum: &mut [f32], sum: &mut [f32]) {
        let m = maximum.len();
        maximum.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        for line in values.chunks_exact(m) {
            for (maximum, &x) in maximum.iter_mut().zip(line) {
                *maximum = if x > *maximum { x } else { *maximum };
            }
        }
        for line in values.chunks_exact_mut(m) {
            for ((x, sum), &maximum) in line.iter_mut().zip(sum.iter_mut()).zip(&*maximum) {
                *x = exp(*x - finite_maximum(maximum));
                *sum += *x;
            }
        }
    }
}

for_each_isa! {
    /// Multiplies each line of `values`, `[part, m]`, by `factors`, `[m]`.
    fn multiply_rows(values: &mut [f32], factors: &[f32]) {
        for line in values.chunks_exact_mut(factors.len()) {
            for (x, &factor) in line.iter_mut().zip(factors) {
                *x *= factor;
            }
        }
    }
}
