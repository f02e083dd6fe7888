//! Gradients of attention on slices. Probabilities are recomputed from the log-sum-exp of each
//! query, for one block of queries and keys at a time.
//!
//! Gradients of keys and values are summed in f32 over all queries of a task. If a document is
//! split into several tasks, their sums are then added in query order.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::cpu::{Heads, Inputs, Task, with_arithmetic};
use super::cpu_forward::rows;
use super::cpu_operands::{Rows, column_units, left_units, line_units, numbers_of, write_row};
use super::cpu_softmax::{KEYS, LANES, RowSums, ScoreBlock};
use super::cpu_tile::{Arithmetic, Left, Onto, PANEL, Panels, multiply};
use super::{Causality, Documents};
use crate::cpu::isa::{Isa, for_each_isa};
#[cfg(target_arch = "x86_64")]
use crate::cpu::lanes_avx512::dot;
use crate::cpu::number::Number;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::{for_tasks, map_tasks};
use crate::cpu::scratch::with_parts;
use crate::cpu::shared::Shared;
use crate::cpu::sum::sum_of_pairs;

/// Queries per block, a multiple of the tile rows.
const QUERIES: usize = 48;

/// Results of the forward pass, and the gradient of its output.
#[derive(Debug)]
pub(super) struct Results<'a, T> {
    /// `[n, h, c]`.
    pub(super) out: &'a [T],
    /// `[n, h]`.
    pub(super) log_sums: &'a [f32],
    /// `[n, h, c]`.
    pub(super) d_out: &'a [T],
}

/// Gradient of queries, keys and values, `[n, h + 2 g, c]`; padding rows are zero.
pub(super) fn attention_gradient<T: Number>(
    inputs: &Inputs<'_, T>,
    results: &Results<'_, T>,
    documents: &Documents,
) -> Buffer<T> {
    let width = inputs.heads.all() * inputs.heads.c;
    // SAFETY: tasks write the query gradients, each document and head writes its key and value
    // gradients once, and the padding is written here.
    unsafe {
        Buffer::filled(documents.n_tokens() * width, |gradient| {
            gradient[documents.end() * width..].fill(MaybeUninit::new(T::narrow(0.0)));
            let gradient = Gradient {
                numbers: Shared::new(gradient),
                heads: inputs.heads,
            };
            let tasks = inputs.tasks(documents);
            let runs: Vec<&[Task]> = tasks
                .chunk_by(|a, b| (a.start, a.kv_head) == (b.start, b.kv_head))
                .collect();
            for_tasks(&runs, |run| {
                let partial = map_tasks(run, |task| {
                    with_arithmetic!(T, inputs.heads.c, A => {
                        one_task::<A, T>(inputs, results, task, &gradient)
                    })
                });
                gradient.write_keys_and_values(run, partial);
            });
        })
    }
}

/// The gradient `[n, h + 2 g, c]`; each task writes a part of it.
struct Gradient<'a, T> {
    numbers: Shared<'a, MaybeUninit<T>>,
    heads: Heads,
}

impl<T: Number> Gradient<'_, T> {
    /// # Safety
    ///
    /// No other thread accesses this token's head.
    unsafe fn write(&self, token: usize, head: usize, values: &[f32]) {
        let c = self.heads.c;
        // SAFETY: guaranteed by the caller.
        let to = unsafe { self.numbers.slice((token * self.heads.all() + head) * c, c) };
        write_row(values, 1.0, to);
    }

    /// Sums the key and value gradients over the tasks of one document and head, and writes the
    /// sums. Each part has the keys first, then the values.
    ///
    /// # Safety
    ///
    /// No other thread accesses the keys and values of this document and head.
    unsafe fn write_keys_and_values(&self, run: &[Task], partial: Vec<Buffer<f32>>) {
        let Heads { h, g, c, .. } = self.heads;
        // The last task has the most keys.
        let (task, mut partial) = (run[run.len() - 1], partial);
        let Some(mut sums) = partial.pop() else {
            return;
        };
        let (d_keys, d_values) = sums.split_at_mut(task.keys * c);
        for earlier in &partial {
            let (keys, values) = earlier.split_at(earlier.len() / 2);
            for (sums, added) in [(&mut *d_keys, keys), (&mut *d_values, values)] {
                sums.iter_mut()
                    .zip(added)
                    .for_each(|(sum, value)| *sum += value);
            }
        }
        for (first, sums) in [(h, d_keys), (h + g, d_values)] {
            for (i, row) in sums.chunks_exact(c).enumerate() {
                // SAFETY: guaranteed by the caller.
                unsafe { self.write(task.start + i, first + task.kv_head, row) };
            }
        }
    }
}

/// Writes the gradients of the task's queries; returns its contributions to the gradients of keys
/// and values, `[2, keys, c]`.
///
/// # Safety
///
/// The CPU has the instruction set of `A`; no other thread accesses the gradients of these queries.
unsafe fn one_task<A: Arithmetic, T: Number>(
    inputs: &Inputs<'_, T>,
    results: &Results<'_, T>,
    task: &Task,
    gradient: &Gradient<'_, T>,
) -> Buffer<f32> {
    let heads @ Heads { c, .. } = inputs.heads;
    let mut sums = Buffer::repeated(0.0, 2 * task.keys * c);
    let (d_keys, d_values) = sums.split_at_mut(task.keys * c);
    let columns = column_units::<A>(task.keys, c);
    let sizes = [columns, columns, line_units::<A>(task.keys, c)];
    with_parts(sizes, |[key_columns, value_columns, key_lines]| {
        let (keys, values) = (inputs.keys(task), inputs.values(task));
        let operands = Operands {
            key_columns: keys.columns::<A>(key_columns),
            value_columns: values.columns::<A>(value_columns),
            key_lines: keys.lines::<A>(key_lines),
        };
        for head in heads.group(task.kv_head) {
            for first in (task.first..task.first + task.queries).step_by(QUERIES) {
                let block = Block {
                    head,
                    first,
                    queries: QUERIES.min(task.first + task.queries - first),
                    task,
                    operands: &operands,
                };
                // SAFETY: guaranteed by the caller; operands are packed for all keys of the task.
                unsafe {
                    block.run::<A, T>(inputs, results, [&mut *d_keys, &mut *d_values], gradient);
                };
            }
        }
    });
    sums
}

/// Packed keys and values of a task.
struct Operands {
    key_columns: Panels,
    value_columns: Panels,
    key_lines: Panels,
}

/// A block of queries of one head.
struct Block<'a> {
    head: usize,
    /// First query, relative to the start of the document.
    first: usize,
    queries: usize,
    task: &'a Task,
    operands: &'a Operands,
}

impl Block<'_> {
    /// Start of the first block of keys that a query of the block attends to.
    fn first_keys<T>(&self, inputs: &Inputs<'_, T>) -> usize {
        inputs.first_seen(self.first) / KEYS * KEYS
    }

    /// # Safety
    ///
    /// Same as [`one_task`].
    unsafe fn run<A: Arithmetic, T: Number>(
        &self,
        inputs: &Inputs<'_, T>,
        results: &Results<'_, T>,
        [d_keys, d_values]: [&mut [f32]; 2],
        gradient: &Gradient<'_, T>,
    ) {
        let Heads { h, c, .. } = inputs.heads;
        let m = self.queries;
        let first_token = self.task.start + self.first;
        let queries = inputs.head(self.head, first_token, m);
        let [out, d_out] = [results.out, results.d_out].map(|numbers| Rows {
            numbers: &numbers[(first_token * h + self.head) * c..],
            stride: h * c,
            rows: m,
            c,
        });
        let mut row_sums = [RowSums {
            log_sum: 0.0,
            dot: 0.0,
        }; QUERIES];
        for (i, sums) in row_sums[..m].iter_mut().enumerate() {
            sums.log_sum = results.log_sums[(first_token + i) * h + self.head];
        }
        products_of_rows(out, d_out, &mut row_sums[..m]);
        let square = QUERIES * KEYS;
        let sizes = [
            left_units::<A>(m, c),
            left_units::<A>(m, c),
            line_units::<A>(m, c),
            line_units::<A>(m, c),
            square,
            square,
            square,
            m * c,
        ];
        with_parts(sizes, |parts| {
            let [
                q_memory,
                d_out_memory,
                q_lines,
                d_out_lines,
                p,
                ds,
                narrow,
                dq,
            ] = parts;
            let left = [queries.left::<A>(q_memory), d_out.left::<A>(d_out_memory)];
            let lines = [queries.lines::<A>(q_lines), d_out.lines::<A>(d_out_lines)];
            let end = inputs.keys_seen(self.first + m, self.task.keys);
            for first in (self.first_keys(inputs)..end).step_by(KEYS) {
                let keys = first..end.min(first + KEYS);
                for row in (0..m).step_by(A::ROWS) {
                    let rows = row..m.min(row + A::ROWS);
                    let tile = Tile {
                        first: self.first + row,
                        left: left.map(|left| left.rows_from(row)),
                        sums: &row_sums[rows.clone()],
                        dq: &mut dq[row * c..],
                    };
                    // Whole tiles, because units may extend past the last query.
                    let memory = row * KEYS..(row + A::ROWS) * KEYS;
                    let places = [&mut *p, &mut *ds].map(|x| &mut x[memory.clone()]);
                    // SAFETY: guaranteed by the caller; the tile's rows belong to the block.
                    unsafe {
                        self.score_gradients::<A, T>(inputs, tile, keys.clone(), places, narrow)
                    };
                }
                for (values, lines, sums) in [
                    (&*ds, lines[0], &mut *d_keys),
                    (&*p, lines[1], &mut *d_values),
                ] {
                    // SAFETY: guaranteed by the caller; the lines belong to the block's queries.
                    unsafe { self.key_sums::<A, T>(inputs, values, lines, keys.clone(), sums) };
                }
            }
            for (i, row) in dq.chunks_exact(c).enumerate() {
                // SAFETY: the query belongs to this task.
                unsafe { gradient.write(first_token + i, self.head, row) };
            }
        });
    }

    /// Computes the probabilities and score gradients of a tile for `keys`, and writes them to `p`
    /// and `ds`: as lines of units along the queries, with zeros for masked keys. Keys that no
    /// query of the tile attends to are skipped, except for a few zeros. Also accumulates the query
    /// gradients.
    ///
    /// # Safety
    ///
    /// Same as [`one_task`]; the tile has at most `A::ROWS` queries, all in the block.
    unsafe fn score_gradients<A: Arithmetic, T: Number>(
        &self,
        inputs: &Inputs<'_, T>,
        tile: Tile<'_>,
        keys: Range<usize>,
        [p, ds]: [&mut [f32]; 2],
        narrow: &mut [f32],
    ) {
        let (heads, m) = (inputs.heads, tile.sums.len());
        let visible = keys.start..inputs.keys_seen(tile.first + m, keys.end);
        if visible.is_empty() {
            return;
        }
        let columns = visible.len().next_multiple_of(LANES);
        let shape = [m, columns, heads.c.div_ceil(A::PER_UNIT)];
        let panels = [self.operands.key_columns, self.operands.value_columns];
        let scores = [&mut *p, &mut *ds];
        for ((left, panels), to) in tile.left.into_iter().zip(panels).zip(scores) {
            let panels = Panels {
                first: panels
                    .first
                    .wrapping_add(keys.start / PANEL * panels.stride),
                ..panels
            };
            // SAFETY: operands are packed for all keys of the task and all queries of the block;
            // panels are whole.
            unsafe { multiply::<A>(rows(to, KEYS, Onto::Nothing), left, panels, shape) };
        }
        inputs.mask_scores(
            &mut p[..m * KEYS],
            KEYS,
            tile.first,
            visible.clone(),
            columns,
        );
        let block = ScoreBlock {
            scores: &mut *p,
            gradients: &mut *ds,
            n: columns,
            scale: heads.scale,
            rows: tile.sums,
            to: numbers_of::<A>(&mut *narrow),
        };
        // SAFETY: the CPU has the instruction set.
        unsafe { A::score_gradients(block) };
        // Later products with these rows read a few of the skipped columns.
        let zeros = columns..KEYS.min(columns + A::ROWS);
        for row in p.chunks_exact_mut(KEYS).chain(ds.chunks_exact_mut(KEYS)) {
            row[zeros.clone()].fill(0.0);
        }
        let left = Left {
            first: narrow.as_ptr(),
            row_stride: KEYS / A::PER_UNIT,
            depth_stride: 1,
        };
        let lines = self.operands.key_lines;
        let lines = Panels {
            first: lines.first.wrapping_add(keys.start / A::PER_UNIT * PANEL),
            ..lines
        };
        let first_column = keys.start - self.first_keys(inputs);
        let target = rows(tile.dq, heads.c, Onto::after(first_column));
        let shape = [m, heads.c, visible.len().div_ceil(A::PER_UNIT)];
        // SAFETY: the gradients have `KEYS` columns, and `key_lines` has a line for each visible
        // key.
        unsafe { multiply::<A>(target, left, lines, shape) };
    }

    /// Adds the products of `values` (lines of units along the block's queries) and `lines` (one
    /// per query) to the sums of `keys`.
    ///
    /// # Safety
    ///
    /// The CPU has the instruction set of `A`; `lines` belong to the block's queries.
    unsafe fn key_sums<A: Arithmetic, T: Number>(
        &self,
        inputs: &Inputs<'_, T>,
        values: &[f32],
        lines: Panels,
        keys: Range<usize>,
        sums: &mut [f32],
    ) {
        let c = inputs.heads.c;
        for first in keys.clone().step_by(A::ROWS) {
            // Earlier queries do not attend to these keys.
            let unseen = match inputs.causality {
                Causality::Causal | Causality::Sliding(_) => {
                    first.saturating_sub(self.first) / A::ROWS * A::ROWS
                }
                Causality::Bidirectional => 0,
            };
            let left = Left {
                first: values[unseen * KEYS + first - keys.start..].as_ptr(),
                row_stride: 1,
                depth_stride: KEYS * A::PER_UNIT,
            };
            let lines = Panels {
                first: lines.first.wrapping_add(unseen / A::PER_UNIT * PANEL),
                ..lines
            };
            let target = rows(&mut sums[first * c..], c, Onto::Sums);
            let depth = (self.queries - unseen).div_ceil(A::PER_UNIT);
            let shape = [A::ROWS.min(keys.end - first), c, depth];
            // SAFETY: guaranteed by the caller; tiles before `unseen` are whole units.
            unsafe { multiply::<A>(target, left, lines, shape) };
        }
    }
}

/// A few queries of a block.
struct Tile<'a> {
    /// First query, relative to the start of the document.
    first: usize,
    /// Queries, and gradients of their outputs.
    left: [Left; 2],
    /// One per query.
    sums: &'a [RowSums],
    /// Accumulated query gradients, starting at this tile's first query.
    dq: &'a mut [f32],
}

/// Dot products of corresponding rows.
fn products_of_rows<T: Number>(a: Rows<'_, T>, b: Rows<'_, T>, to: &mut [RowSums]) {
    match Isa::detect() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => {
            for (i, to) in to.iter_mut().enumerate() {
                // SAFETY: the CPU feature was detected; both rows have the same length.
                to.dot = unsafe { dot(a.row(i), b.row(i)) };
            }
        }
        _ => products_in_loops(a, b, to),
    }
}

for_each_isa! {
    fn products_in_loops[T: Number](a: Rows<'_, T>, b: Rows<'_, T>, to: &mut [RowSums]) {
        for (i, to) in to.iter_mut().enumerate() {
            to.dot = sum_of_pairs(a.row(i), b.row(i), |a, b| a.widen() * b.widen());
        }
    }
}
