//! A linear-attention layer on slices. The backward pass recomputes the convolution and the gates,
//! so only the layer's input and the outputs of the states are stored.

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

/// Frozen parameters of a layer, and its documents.
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

/// Inputs of the rule and the norm.
struct Prepared<T> {
    /// Queries, keys and values before the convolution; `qkv` has them after it.
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
        let gates = |column: usize, formula: &(dyn Fn(usize, f32) -> f32 + Sync)| {
            let [n, h, all] = [layer.n(), layer.heads.value_heads, layer.columns()];
            let gates = (0..n * h).map(|i| formula(i % h, x[i / h * all + column + i % h].widen()));
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

    /// Columns of a row: queries, keys and values, the gate, beta and steps.
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

    /// Copies some columns of all rows.
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

/// The result and the outputs of the states, `[n, value heads, value_dim]` each.
pub(super) fn forward<T: Number>(x: &[T], layer: Layer<'_>) -> [Buffer<T>; 2] {
    let positions = layer.positions();
    let prepared = Prepared::new(x, layer, &positions);
    let output = rule::read(prepared.inputs(layer.heads), layer.documents);
    let y = gated_norm::forward(&output, &prepared.gate, layer.norm);
    [y, output]
}

/// The gradient of `x`, from `x`, the outputs of the states and the gradient of the result.
pub(super) fn gradient<T: Number>(x: &[T], output: &[T], dy: &[T], layer: Layer<'_>) -> Buffer<T> {
    let positions = layer.positions();
    let mut prepared = Prepared::new(x, layer, &positions);
    let [d_read, d_gate] = gated_norm::gradients([output, &prepared.gate, dy], layer.norm);
    prepared.gate = Buffer::default();
    let input_gradients =
        cpu_backward::gradients(prepared.inputs(layer.heads), &d_read, layer.documents);
    drop(d_read);
    prepared.qkv = Buffer::default();
    let d_qkv = conv::gradient(&prepared.raw, &input_gradients.qkv, layer.taps(&positions));
    prepared.raw = Buffer::default();
    let (h, all) = (layer.heads.value_heads, layer.columns());
    let [qkv_columns, gate_columns, beta_columns, step_columns] = layer.places();
    // SAFETY: all parts of each row are written.
    unsafe {
        write_rows([layer.n(), all], |rows, to| {
            for (row, to) in rows.zip(to.chunks_exact_mut(all)) {
                for (part, from) in [(&qkv_columns, &d_qkv), (&gate_columns, &d_gate)] {
                    let width = part.len();
                    to[part.clone()].write_copy_of_slice(&from[row * width..][..width]);
                }
                for head in 0..h {
                    let (index, beta) = (row * h + head, prepared.beta[row * h + head]);
                    let d_beta = input_gradients.beta[index] * beta * (1.0 - beta);
                    let step =
                        x[row * all + step_columns.start + head].widen() + layer.step_bias[head];
                    let d_step =
                        input_gradients.log_decay[index] * layer.rate[head] * sigmoid(step);
                    to[beta_columns.start + head].write(T::narrow(d_beta));
                    to[step_columns.start + head].write(T::narrow(d_step));
                }
            }
        })
    }
}

/// `ln(1 + eˣ)`, without overflow.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + exp(-x.abs()).ln_1p()
}
