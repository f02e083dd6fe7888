//! A layer of linear attention on slices. The backward pass convolves and opens the gates again, so that
//! nothing is kept but what the layer was given and what it read of the states.

use std::ops::Range;

use crate::causal_conv::cpu::{self as conv, Taps};
use crate::causal_conv::positions;
use crate::cpu::exp::{exp, sigmoid};
use crate::cpu::number::Number;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::write_rows;
use crate::gated_delta::{cpu as rule, cpu_backward};
use crate::gated_norm::cpu::{self as gated_norm, Norm};
use crate::{DeltaHeads, Documents};

/// What is frozen of a layer, and the documents that it reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layer<'a> {
    pub(super) heads: DeltaHeads,
    /// `[kernel, width]`.
    pub(super) conv: &'a [f32],
    pub(super) rate: &'a [f32],
    pub(super) step_bias: &'a [f32],
    pub(super) norm: Norm<'a>,
    pub(super) documents: &'a Documents,
}

/// What the rule and the norm read.
struct Prepared<T> {
    /// Before and behind the convolution.
    raw: Buffer<T>,
    qkv: Buffer<T>,
    log_decay: Buffer<f32>,
    beta: Buffer<f32>,
    gate: Buffer<T>,
}

impl<T: Number> Prepared<T> {
    fn new(x: &[T], layer: Layer<'_>, positions: &[u32]) -> Self {
        let [raw, gate, share, step] = layer.places();
        let raw = layer.part(x, raw);
        let taps = layer.taps(positions);
        let gates = |column: usize, of: &(dyn Fn(usize, f32) -> f32 + Sync)| {
            let [n, h, all] = [layer.n(), layer.heads.value_heads, layer.columns()];
            let gates = (0..n * h).map(|i| of(i % h, x[i / h * all + column + i % h].widen()));
            Buffer::copy_of(&gates.collect::<Vec<_>>())
        };
        Self {
            qkv: conv::forward(&raw, taps),
            raw,
            log_decay: gates(step.start, &|head, step| {
                layer.rate[head] * softplus(step + layer.step_bias[head])
            }),
            beta: gates(share.start, &|_, share| sigmoid(share)),
            gate: layer.part(x, gate),
        }
    }

    fn inputs(&self, heads: DeltaHeads) -> rule::Inputs<'_, T> {
        rule::Inputs {
            qkv: &self.qkv,
            log_decay: &self.log_decay,
            beta: &self.beta,
            heads,
        }
    }
}

impl<'a> Layer<'a> {
    fn n(&self) -> usize {
        self.documents.n_tokens()
    }

    fn columns(&self) -> usize {
        self.heads.columns().iter().sum()
    }

    /// Where a row has queries, keys and values, the gate, shares and steps.
    fn places(&self) -> [Range<usize>; 4] {
        let mut first = 0;
        self.heads.columns().map(|width| {
            first += width;
            first - width..first
        })
    }

    fn positions(&self) -> Vec<u32> {
        positions(self.documents).map(|i| i as u32).collect()
    }

    fn taps(&self, positions: &'a [u32]) -> Taps<'a> {
        Taps {
            weight: self.conv,
            channels: self.heads.width(),
            positions,
        }
    }

    /// Some columns of all rows.
    fn part<T: Number>(&self, x: &[T], columns: Range<usize>) -> Buffer<T> {
        let all = self.columns();
        // SAFETY: each row is copied.
        unsafe {
            write_rows([self.n(), columns.len()], |rows, to| {
                for (row, to) in rows.zip(to.chunks_exact_mut(columns.len())) {
                    to.write_copy_of_slice(&x[row * all..][columns.clone()]);
                }
            })
        }
    }
}

/// What is given, and what was read of the states, `[n, value heads, value_dim]` each.
pub(super) fn forward<T: Number>(x: &[T], layer: Layer<'_>) -> [Buffer<T>; 2] {
    let positions = layer.positions();
    let prepared = Prepared::new(x, layer, &positions);
    let read = rule::read(prepared.inputs(layer.heads), layer.documents);
    let y = gated_norm::forward(&read, &prepared.gate, layer.norm);
    [y, read]
}

/// The gradient of `x`, from `x`, what was read of the states, and the gradient of what was given.
pub(super) fn gradient<T: Number>(x: &[T], read: &[T], dy: &[T], layer: Layer<'_>) -> Buffer<T> {
    let positions = layer.positions();
    let mut prepared = Prepared::new(x, layer, &positions);
    let [d_read, d_gate] = gated_norm::gradients([read, &prepared.gate, dy], layer.norm);
    prepared.gate = Buffer::default();
    let found = cpu_backward::gradients(prepared.inputs(layer.heads), &d_read, layer.documents);
    drop(d_read);
    prepared.qkv = Buffer::default();
    let d_qkv = conv::gradient(&prepared.raw, &found.qkv, layer.taps(&positions));
    prepared.raw = Buffer::default();
    let (h, all) = (layer.heads.value_heads, layer.columns());
    let [of_qkv, of_gate, of_share, of_step] = layer.places();
    // SAFETY: each row is written part by part.
    unsafe {
        write_rows([layer.n(), all], |rows, to| {
            for (row, to) in rows.zip(to.chunks_exact_mut(all)) {
                for (part, from) in [(&of_qkv, &d_qkv), (&of_gate, &d_gate)] {
                    let width = part.len();
                    to[part.clone()].write_copy_of_slice(&from[row * width..][..width]);
                }
                for head in 0..h {
                    let (at, share) = (row * h + head, prepared.beta[row * h + head]);
                    let d_share = found.beta[at] * share * (1.0 - share);
                    let step = x[row * all + of_step.start + head].widen() + layer.step_bias[head];
                    let d_step = found.log_decay[at] * layer.rate[head] * sigmoid(step);
                    to[of_share.start + head].write(T::narrow(d_share));
                    to[of_step.start + head].write(T::narrow(d_step));
                }
            }
        })
    }
}

/// `ln(1 + eˣ)`, which no number overflows.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + exp(-x.abs()).ln_1p()
}
