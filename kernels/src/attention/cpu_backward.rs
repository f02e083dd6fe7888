//! Gradients of attention on slices: probabilities are computed again from the logarithms of
//! their sums, a block of queries at a time.
//!
//! A task owns one query head of one document. Heads that share keys write gradients of their
//! own, which are added afterwards in the order of heads: the sum does not depend on threads.

use rayon::prelude::*;

use super::Documents;
use super::cpu::{Block, Heads, Inputs, W, pack_columns};
use super::softmax::{probabilities, score_gradients};
use crate::cpu::scratch::with_scratch;
use crate::cpu::shared::Shared;
use crate::cpu::tile::Tile;
use crate::cpu::tiles::{Left, Lines, Target, multiply};
use crate::cpu::with_tile;

/// Gradients of queries `[n, h, c]`, keys and values `[n, g, c]`.
#[derive(Debug)]
pub(crate) struct InputGradients {
    pub(crate) dq: Vec<f32>,
    pub(crate) dk: Vec<f32>,
    pub(crate) dv: Vec<f32>,
}

/// What the forward pass left, and the gradient of its output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outputs<'a> {
    /// `[n, h, c]`.
    pub(crate) out: &'a [f32],
    /// `[n, h]`.
    pub(crate) log_sums: &'a [f32],
    /// `[n, h, c]`.
    pub(crate) d_out: &'a [f32],
}

/// Gradients of [`super::cpu::attention`].
pub(crate) fn attention_gradients(
    inputs: Inputs<'_>,
    outputs: Outputs<'_>,
    documents: &Documents,
) -> InputGradients {
    let Heads { h, g, c } = inputs.heads;
    let n = documents.n_tokens();
    let mut of_heads = [0; 3].map(|_| vec![0.0; n * h * c]);
    let spans: Vec<(usize, usize)> = documents.spans().collect();
    let [dq, dk, dv] = of_heads.each_mut().map(|gradient| Shared::new(gradient));
    (0..spans.len() * h).into_par_iter().for_each(|task| {
        let (span, head) = (spans[task / h], task % h);
        for block in inputs.blocks(span, head) {
            let shared = HeadGradients {
                dq: &dq,
                dk: &dk,
                dv: &dv,
            };
            // SAFETY: `with_tile` names an instruction set that the CPU has. Tasks are disjoint
            // heads of documents, and each writes the gradients of its own.
            with_tile!(T, 2 => unsafe { one_block::<T>(&inputs, &outputs, &block, &shared) });
        }
    });
    let [dq, dk, dv] = of_heads;
    InputGradients {
        dq,
        dk: sum_groups(dk, h / g, c),
        dv: sum_groups(dv, h / g, c),
    }
}

struct HeadGradients<'a> {
    dq: &'a Shared<'a>,
    dk: &'a Shared<'a>,
    dv: &'a Shared<'a>,
}

/// # Safety
///
/// The CPU has the instruction set of `T`; no one else touches the gradients of the block's head
/// in its document.
unsafe fn one_block<T: Tile>(
    inputs: &Inputs<'_>,
    outputs: &Outputs<'_>,
    block: &Block,
    gradients: &HeadGradients<'_>,
) {
    let heads @ Heads { h, g, c } = inputs.heads;
    let &Block {
        queries: m, keys, ..
    } = block;
    let first = inputs.first_float(block);
    let padded = c.next_multiple_of(W);
    with_scratch((2 * keys + 3 * c + 2 * padded) * W, |scratch| {
        let (q_columns, rest) = scratch.split_at_mut(c * W);
        let (d_out_columns, rest) = rest.split_at_mut(c * W);
        let (dq_columns, rest) = rest.split_at_mut(c * W);
        let (q_rows, rest) = rest.split_at_mut(padded * W);
        let (d_out_rows, rest) = rest.split_at_mut(padded * W);
        let (p, ds) = rest.split_at_mut(keys * W);
        let (q, d_out) = (&inputs.q[first..], &outputs.d_out[first..]);
        pack_columns::<W>(q, [m, c], h * c, heads.scale(), q_columns);
        pack_columns::<W>(d_out, [m, c], h * c, 1.0, d_out_columns);
        pack_rows(q, [m, c], h * c, heads.scale(), q_rows);
        pack_rows(d_out, [m, c], h * c, 1.0, d_out_rows);
        let mut log_sums = [0.0; W];
        let mut along = [0.0; W];
        for j in 0..m {
            log_sums[j] = outputs.log_sums[first / c + j * h];
            let row = j * h * c..j * h * c + c;
            let out = &outputs.out[first..][row.clone()];
            along[j] = out.iter().zip(&d_out[row]).map(|(a, b)| a * b).sum();
        }
        let keys_at = inputs.of_document(inputs.k, block);
        let values = Left {
            first: inputs.of_document(inputs.v, block),
            row_stride: g * c,
            depth_stride: 1,
        };
        let lines = |x: &[f32], stride: usize| Lines {
            first: x.as_ptr(),
            stride,
        };
        let columns = |x: &mut [f32]| Target {
            first: x.as_mut_ptr(),
            row_stride: W,
            adds: false,
        };
        // SAFETY: the document has `keys` keys and values; every operand in the scratch has the
        // lines that its product reads. Gradients of keys lie as keys do, but by query head.
        unsafe {
            inputs.scores::<T>(block, q_columns, p);
            probabilities::<W>(p, &log_sums);
            multiply::<T>(columns(ds), values, lines(d_out_columns, W), [keys, W, c]);
            score_gradients::<W>(ds, p, &along);

            let keys_by_column = Left {
                first: keys_at,
                row_stride: 1,
                depth_stride: g * c,
            };
            multiply::<T>(
                columns(dq_columns),
                keys_by_column,
                lines(ds, W),
                [c, W, keys],
            );
            let document = (block.start * h + block.head) * c;
            let added = |x: &Shared<'_>| Target {
                first: x.pointer(document, document + (keys - 1) * h * c + c),
                row_stride: h * c,
                adds: true,
            };
            let by_key = |x: &[f32]| Left {
                first: x.as_ptr(),
                row_stride: W,
                depth_stride: 1,
            };
            multiply::<T>(
                added(gradients.dk),
                by_key(ds),
                lines(q_rows, padded),
                [keys, c, m],
            );
            multiply::<T>(
                added(gradients.dv),
                by_key(p),
                lines(d_out_rows, padded),
                [keys, c, m],
            );
        }
        for j in 0..m {
            // SAFETY: query `j` of the block lies within the gradient and belongs to this task.
            let row = unsafe { gradients.dq.slice(first + j * h * c, c) };
            for (value, line) in row.iter_mut().zip(dq_columns.chunks_exact(W)) {
                *value = line[j] * heads.scale();
            }
        }
    });
}

/// Rows of `c` floats, `row_stride` apart, as rows of a whole number of [`W`]s.
fn pack_rows(from: &[f32], [rows, c]: [usize; 2], row_stride: usize, scale: f32, to: &mut [f32]) {
    let padded = c.next_multiple_of(W);
    for (j, to) in to.chunks_exact_mut(padded).take(rows).enumerate() {
        let row = &from[j * row_stride..j * row_stride + c];
        for (to, value) in to.iter_mut().zip(row) {
            *to = value * scale;
        }
    }
}

/// `[n, g, group, c]` to `[n, g, c]`.
fn sum_groups(of_heads: Vec<f32>, group: usize, c: usize) -> Vec<f32> {
    if group == 1 {
        return of_heads;
    }
    let mut sums = vec![0.0; of_heads.len() / group];
    let step = c * 64;
    let tasks = sums
        .par_chunks_mut(step)
        .zip(of_heads.par_chunks(step * group));
    tasks.for_each(|(sums, of_heads)| {
        for (sum, heads) in sums
            .chunks_exact_mut(c)
            .zip(of_heads.chunks_exact(group * c))
        {
            for head in heads.chunks_exact(c) {
                sum.iter_mut()
                    .zip(head)
                    .for_each(|(sum, value)| *sum += value);
            }
        }
    });
    sums
}
