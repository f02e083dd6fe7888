//! Attention on slices: computes the scores of one block of queries and one block of keys at a
//! time.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::Documents;
use super::cpu::{Heads, Inputs, Task, with_arithmetic};
use super::cpu_operands::{column_units, left_units, line_units, numbers_of, write_row};
use super::cpu_softmax::{KEYS, LANES, Running, exponentiate, finite};
use super::cpu_tile::{Arithmetic, Left, Onto, PANEL, Panels, Target, multiply};
use crate::cpu::number::Number;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::for_tasks;
use crate::cpu::scratch::with_parts;
use crate::cpu::shared::Shared;

/// Queries per block.
const QUERIES: usize = 48;

/// Result of the forward pass.
#[derive(Debug)]
pub(super) struct Attended<T> {
    /// `[n, h, c]`.
    pub(super) out: Buffer<T>,
    /// Log-sum-exp of each query's scores, `[n, h]`.
    pub(super) log_sums: Buffer<f32>,
}

/// Output of the tasks; each query of each head is written once.
struct Outputs<'a, T> {
    out: Shared<'a, MaybeUninit<T>>,
    log_sums: Shared<'a, MaybeUninit<f32>>,
}

/// `softmax(q kᵀ / √c) v` of each head within each document; padding rows are zero.
pub(super) fn attention<T: Number>(inputs: &Inputs<'_, T>, documents: &Documents) -> Attended<T> {
    let Heads { h, c, .. } = inputs.heads;
    let n = documents.n_tokens();
    let real = documents.end();
    let mut log_sums = Buffer::default();
    // SAFETY: tasks write every query of every document; the padding is written here.
    let out = unsafe {
        Buffer::filled(n * h * c, |out| {
            log_sums = Buffer::filled(n * h, |log_sums| {
                out[real * h * c..].fill(MaybeUninit::new(T::narrow(0.0)));
                log_sums[real * h..].fill(MaybeUninit::new(0.0));
                let outputs = Outputs {
                    out: Shared::new(out),
                    log_sums: Shared::new(log_sums),
                };
                for_tasks(&inputs.tasks(documents), |task| {
                    with_arithmetic!(T, c, A => one_task::<A, T>(inputs, task, &outputs));
                });
            });
        })
    };
    Attended { out, log_sums }
}

/// # Safety
///
/// The CPU has the instruction set of `A`; no other thread accesses the outputs of the task's
/// queries.
unsafe fn one_task<A: Arithmetic, T: Number>(
    inputs: &Inputs<'_, T>,
    task: &Task,
    outputs: &Outputs<'_, T>,
) {
    let heads @ Heads { c, .. } = inputs.heads;
    let sizes = [
        column_units::<A>(task.keys, c),
        line_units::<A>(task.keys, c),
    ];
    with_parts(sizes, |[keys, values]| {
        let keys = inputs.keys(task).columns::<A>(keys);
        let values = inputs.values(task).lines::<A>(values);
        for head in heads.group(task.kv_head) {
            for first in (task.first..task.first + task.queries).step_by(QUERIES) {
                let block = Block {
                    head,
                    start: task.start,
                    first,
                    queries: QUERIES.min(task.first + task.queries - first),
                    n_keys: task.keys,
                    keys,
                    values,
                };
                // SAFETY: guaranteed by the caller; operands are packed for all keys of the task.
                unsafe { block.run::<A, T>(inputs, outputs) };
            }
        }
    });
}

/// A block of queries of one head.
struct Block {
    head: usize,
    /// First token of the document.
    start: usize,
    /// First query, relative to the start of the document.
    first: usize,
    queries: usize,
    /// Number of keys of the task.
    n_keys: usize,
    keys: Panels,
    values: Panels,
}

impl Block {
    /// # Safety
    ///
    /// Same as [`one_task`].
    unsafe fn run<A: Arithmetic, T: Number>(
        &self,
        inputs: &Inputs<'_, T>,
        outputs: &Outputs<'_, T>,
    ) {
        let Heads { h, c, .. } = inputs.heads;
        let m = self.queries;
        let sizes = [left_units::<A>(m, c), m * KEYS, m * KEYS, m * c];
        with_parts(sizes, |[memory, scores, exponentials, attended]| {
            let first_token = self.start + self.first;
            let queries = inputs.head(self.head, first_token, m).left::<A>(memory);
            let mut states = [Running::START; QUERIES];
            let end = inputs.keys_seen(self.first + m, self.n_keys);
            let start = inputs.first_seen(self.first) / KEYS * KEYS;
            for first in (start..end).step_by(KEYS) {
                let keys = first..end.min(first + KEYS);
                for row in (0..m).step_by(A::ROWS) {
                    let tile = Tile {
                        first: self.first + row,
                        queries: queries.rows_from(row),
                        states: &mut states[row..m.min(row + A::ROWS)],
                        attended: &mut attended[row * c..],
                    };
                    let memory = [&mut *scores, &mut *exponentials];
                    // SAFETY: guaranteed by the caller; the tile's rows belong to the block.
                    unsafe { self.attend::<A, T>(inputs, tile, keys.clone(), memory) };
                }
            }
            for (i, (row, state)) in attended.chunks_exact(c).zip(&states).enumerate() {
                let query = (first_token + i) * h + self.head;
                // SAFETY: the query is within the outputs and belongs to this task.
                let (out, log_sum) = unsafe {
                    (
                        outputs.out.slice(query * c, c),
                        outputs.log_sums.slice(query, 1),
                    )
                };
                log_sum[0].write(finite(state.maximum) + state.sum.ln());
                write_row(row, 1.0 / state.sum, out);
            }
        });
    }

    /// Updates the states and sums of a tile with the values of `keys`; keys that no query of the
    /// tile attends to are skipped.
    ///
    /// # Safety
    ///
    /// Same as [`one_task`]; the tile has at most `A::ROWS` queries, all in the block.
    unsafe fn attend<A: Arithmetic, T: Number>(
        &self,
        inputs: &Inputs<'_, T>,
        tile: Tile<'_>,
        keys: Range<usize>,
        [scores, exponentials]: [&mut [f32]; 2],
    ) {
        let (heads, m) = (inputs.heads, tile.states.len());
        let keys = keys.start..inputs.keys_seen(tile.first + m, keys.end);
        let first_seen = inputs.first_seen(tile.first);
        if keys.is_empty() || keys.end <= first_seen {
            return;
        }
        let columns = keys.len().next_multiple_of(LANES);
        let panels = Panels {
            first: self
                .keys
                .first
                .wrapping_add(keys.start / PANEL * self.keys.stride),
            ..self.keys
        };
        let shape = [m, columns, heads.c.div_ceil(A::PER_UNIT)];
        // SAFETY: the tile has `m` queries; panels of keys are whole.
        unsafe {
            multiply::<A>(
                rows(scores, KEYS, Onto::Nothing),
                tile.queries,
                panels,
                shape,
            )
        };
        let scores = &mut scores[..m * KEYS];
        inputs.mask_scores(scores, KEYS, tile.first, keys.clone(), columns);
        let powers = numbers_of::<A>(exponentials);
        exponentiate(scores, columns, heads.scale, tile.states, powers);
        let onto = if keys.start <= first_seen {
            Onto::Nothing
        } else {
            Onto::Corrected(tile.states.as_ptr())
        };
        let panels = Panels {
            first: self
                .values
                .first
                .wrapping_add(keys.start / A::PER_UNIT * PANEL),
            ..self.values
        };
        let left = Left {
            first: exponentials.as_ptr(),
            row_stride: KEYS / A::PER_UNIT,
            depth_stride: 1,
        };
        let target = rows(tile.attended, heads.c, onto);
        let shape = [m, heads.c, keys.len().div_ceil(A::PER_UNIT)];
        // SAFETY: exponentials have `KEYS` columns, and values have a line for each key.
        unsafe { multiply::<A>(target, left, panels, shape) };
    }
}

/// A few queries of a block.
struct Tile<'a> {
    /// First query, relative to the start of the document.
    first: usize,
    queries: Left,
    /// One per query.
    states: &'a mut [Running],
    /// Weighted sums of values so far, starting at this tile's first query.
    attended: &'a mut [f32],
}

/// Contiguous rows as the target of a product.
pub(super) fn rows(memory: &mut [f32], row_stride: usize, onto: Onto) -> Target {
    Target {
        first: memory.as_mut_ptr(),
        row_stride,
        onto,
    }
}
