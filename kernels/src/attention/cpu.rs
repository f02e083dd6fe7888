//! Attention on slices, a block of queries of one head at a time.
//!
//! The scores of a block are transposed, `[keys, W]` with the block's queries side by side: keys
//! and values are then read where they lie, the softmax runs in vectors, and the scores are
//! already what the second product wants. No more than one block's scores exist at a time.

use rayon::prelude::*;

use super::softmax::{exponentiate, finite};
use super::{Causality, Documents};
use crate::cpu::scratch::with_scratch;
use crate::cpu::shared::Shared;
use crate::cpu::tile::Tile;
use crate::cpu::tiles::{Left, Lines, Target, multiply};
use crate::cpu::with_tile;

/// Queries of a block in training and prefill.
pub(super) const W: usize = 32;

/// Sizes of heads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    /// Query heads.
    pub(crate) h: usize,
    /// Key/value heads.
    pub(crate) g: usize,
    /// Size of a head.
    pub(crate) c: usize,
}

impl Heads {
    /// What scores are multiplied with.
    pub(super) fn scale(&self) -> f32 {
        (1.0 / (self.c as f64).sqrt()) as f32
    }

    /// Key/value head of a query head.
    pub(super) fn kv(&self, head: usize) -> usize {
        head / (self.h / self.g)
    }
}

/// Queries `[n, h, c]`, keys and values `[n, g, c]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a [f32],
    pub(crate) v: &'a [f32],
    pub(crate) heads: Heads,
    pub(crate) causality: Causality,
}

/// A block of queries of one head.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) head: usize,
    /// First token of the document.
    pub(super) start: usize,
    /// First query, counted from the document's start.
    pub(super) first: usize,
    /// Queries, at most [`W`].
    pub(super) queries: usize,
    /// Keys that at least one of them sees.
    pub(super) keys: usize,
}

impl Inputs<'_> {
    /// Blocks of a document's head, first queries first.
    pub(super) fn blocks(
        &self,
        (start, length): (usize, usize),
        head: usize,
    ) -> impl Iterator<Item = Block> + use<> {
        let causality = self.causality;
        (0..length).step_by(W).map(move |first| {
            let queries = W.min(length - first);
            let keys = match causality {
                Causality::Causal => first + queries,
                Causality::Bidirectional => length,
            };
            Block {
                head,
                start,
                first,
                queries,
                keys,
            }
        })
    }

    /// Query from which on key `key` is seen, counted from the block's first.
    pub(super) fn first_seeing(&self, block: &Block, key: usize) -> usize {
        match self.causality {
            Causality::Causal => key.saturating_sub(block.first),
            Causality::Bidirectional => 0,
        }
    }

    /// Keys or values of the block's head, from the document's first token on.
    pub(super) fn of_document(&self, kv: &[f32], block: &Block) -> *const f32 {
        let Heads { g, c, .. } = self.heads;
        kv[(block.start * g + self.heads.kv(block.head)) * c..].as_ptr()
    }

    /// Position of the block's first query in `[n, h, c]`.
    pub(super) fn first_float(&self, block: &Block) -> usize {
        ((block.start + block.first) * self.heads.h + block.head) * self.heads.c
    }

    /// `[keys, W]` scores of the block to `scores`; those that the mask hides are `-∞`.
    ///
    /// # Safety
    ///
    /// The CPU has the instruction set of `T`; `scores` has room for `keys * W` floats.
    pub(super) unsafe fn scores<T: Tile>(
        &self,
        block: &Block,
        queries: &[f32],
        scores: &mut [f32],
    ) {
        let Heads { g, c, .. } = self.heads;
        let keys = Left {
            first: self.of_document(self.k, block),
            row_stride: g * c,
            depth_stride: 1,
        };
        let target = Target {
            first: scores.as_mut_ptr(),
            row_stride: W,
            adds: false,
        };
        let queries = Lines {
            first: queries.as_ptr(),
            stride: W,
        };
        // SAFETY: the document has `keys` keys, and the panel of queries `c` lines of `W`.
        unsafe { multiply::<T>(target, keys, queries, [block.keys, W, c]) };
        for (key, line) in scores.chunks_exact_mut(W).enumerate().skip(block.first) {
            let hidden = self.first_seeing(block, key).min(W);
            line[..hidden].fill(f32::NEG_INFINITY);
        }
    }
}

/// Rows of `c` floats, `row_stride` apart, as `c` lines of `W`; missing rows are zeros.
pub(super) fn pack_columns<const W: usize>(
    from: &[f32],
    [rows, c]: [usize; 2],
    row_stride: usize,
    scale: f32,
    to: &mut [f32],
) {
    if rows < W {
        to.fill(0.0);
    }
    for j in 0..rows {
        let row = &from[j * row_stride..j * row_stride + c];
        for (line, value) in to.chunks_exact_mut(W).zip(row) {
            line[j] = value * scale;
        }
    }
}

/// What the forward pass gives.
#[derive(Debug)]
pub(crate) struct Attended {
    /// `[n, h, c]`.
    pub(crate) out: Vec<f32>,
    /// Logarithm of each query's sum of exponentials, `[n, h]`.
    pub(crate) log_sums: Vec<f32>,
}

/// `softmax(q kᵀ / √c) v` of each head within each document; padding rows are zero.
pub(crate) fn attention(inputs: Inputs<'_>, documents: &Documents) -> Attended {
    let Heads { h, c, .. } = inputs.heads;
    let n = documents.n_tokens();
    let mut out = vec![0.0; n * h * c];
    let mut log_sums = vec![0.0; n * h];
    let blocks: Vec<Block> = documents
        .spans()
        .flat_map(|span| (0..h).map(move |head| (span, head)))
        .flat_map(|(span, head)| inputs.blocks(span, head))
        .collect();
    let (shared_out, shared_sums) = (Shared::new(&mut out), Shared::new(&mut log_sums));
    blocks.par_iter().for_each(|block| {
        // SAFETY: `with_tile` names an instruction set that the CPU has. Blocks are disjoint sets
        // of queries of one head, and each task writes those queries' outputs alone.
        with_tile!(T, 2 => unsafe { one_block::<T>(&inputs, block, &shared_out, &shared_sums) });
    });
    Attended { out, log_sums }
}

/// # Safety
///
/// The CPU has the instruction set of `T`; no one else touches the block's outputs.
unsafe fn one_block<T: Tile>(
    inputs: &Inputs<'_>,
    block: &Block,
    out: &Shared<'_>,
    log_sums: &Shared<'_>,
) {
    let heads @ Heads { h, g, c } = inputs.heads;
    let first = inputs.first_float(block);
    with_scratch((block.keys + 2 * c) * W, |scratch| {
        let (queries, rest) = scratch.split_at_mut(c * W);
        let (attended, scores) = rest.split_at_mut(c * W);
        let shape = [block.queries, c];
        pack_columns::<W>(&inputs.q[first..], shape, h * c, heads.scale(), queries);
        let mut maxima = [0.0; W];
        let mut sums = [0.0; W];
        let values = Left {
            first: inputs.of_document(inputs.v, block),
            row_stride: 1,
            depth_stride: g * c,
        };
        let target = Target {
            first: attended.as_mut_ptr(),
            row_stride: W,
            adds: false,
        };
        // SAFETY: the scratch has room for the scores; the document has `keys` values of `c`
        // floats, and `scores` as many lines.
        unsafe {
            inputs.scores::<T>(block, queries, scores);
            exponentiate::<W>(scores, &mut maxima, &mut sums);
            let lines = Lines {
                first: scores.as_ptr(),
                stride: W,
            };
            multiply::<T>(target, values, lines, [c, W, block.keys]);
        }
        for j in 0..block.queries {
            // SAFETY: query `j` of the block lies within the outputs and belongs to this task.
            let (row, log_sum) = unsafe {
                (
                    out.slice(first + j * h * c, c),
                    log_sums.slice(first / c + j * h, 1),
                )
            };
            log_sum[0] = finite(maxima[j]) + sums[j].ln();
            for (value, line) in row.iter_mut().zip(attended.chunks_exact(W)) {
                *value = line[j] / sums[j];
            }
        }
    });
}
