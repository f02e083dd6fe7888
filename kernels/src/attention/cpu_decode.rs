//! Attention of one query a row on slices, to keys that are read in the cache where they lie.

use rayon::prelude::*;

use super::cpu::Heads;
use crate::cpu::exp::exp;
use crate::cpu::isa::for_each_isa;
use crate::cpu::number::Number;
use crate::cpu::pool::Buffer;
use crate::cpu::scratch::with_parts;
use crate::cpu::shared::Shared;
use crate::cpu::sum::sum_of_pairs;

/// Query heads of one key head that go side by side.
const SIDE_BY_SIDE: usize = 4;

/// Columns of values that stay in registers while rows are added.
const COLUMNS: usize = 64;

/// Keys and values of the rows, `[b, g, capacity, c]`.
#[derive(Debug)]
pub(super) struct Cache<'a, U> {
    pub(super) keys: &'a [U],
    pub(super) values: &'a [U],
    pub(super) heads: Heads,
    pub(super) capacity: usize,
}

/// `[b, h + 2 g, c]` to `[b, h, c]`: row `i` sees columns `starts[i]..end`.
pub(super) fn decode<T: Number, U: Number>(
    qkv: &[T],
    cache: &Cache<'_, U>,
    starts: &[usize],
    end: usize,
) -> Buffer<T> {
    let heads @ Heads { h, g, c } = cache.heads;
    let mut out = Buffer::repeated(T::narrow(0.0), starts.len() * h * c);
    let shared = Shared::new(&mut out);
    (0..starts.len() * g).into_par_iter().for_each(|task| {
        let (row, kv_head) = (task / g, task % g);
        let used = (task * cache.capacity + starts[row]) * c..(task * cache.capacity + end) * c;
        let (keys, values) = (&cache.keys[used.clone()], &cache.values[used]);
        for first in heads.group(kv_head).step_by(SIDE_BY_SIDE) {
            let n = SIDE_BY_SIDE.min(heads.group(kv_head).end - first);
            let q = &qkv[(row * heads.all() + first) * c..][..n * c];
            // SAFETY: the heads of this row and key head belong to this task alone.
            let out = unsafe { shared.slice((row * h + first) * c, n * c) };
            let sizes = [
                SIDE_BY_SIDE * c,
                SIDE_BY_SIDE * keys.len() / c,
                COLUMNS * SIDE_BY_SIDE,
            ];
            with_parts(sizes, |[queries, scores, sums]| {
                // Heads that do not exist repeat the last one.
                for (i, to) in queries.chunks_exact_mut(c).enumerate() {
                    let from = &q[i.min(n - 1) * c..][..c];
                    to.iter_mut()
                        .zip(from)
                        .for_each(|(to, from)| *to = from.widen());
                }
                all_scores(queries, keys, heads.scale(), scores);
                for column in (0..c).step_by(COLUMNS) {
                    let columns = column..(column + COLUMNS).min(c);
                    weigh(values, c, columns.clone(), scores, sums);
                    for (out, sums) in out.chunks_exact_mut(c).zip(sums.chunks_exact(COLUMNS)) {
                        let out = &mut out[columns.clone()];
                        out.iter_mut()
                            .zip(sums)
                            .for_each(|(to, &sum)| *to = T::narrow(sum));
                    }
                }
            });
        }
    });
    out
}

for_each_isa! {
    /// Probabilities `[keys, SIDE_BY_SIDE]` of queries `[SIDE_BY_SIDE, c]`.
    fn all_scores[U: Number](queries: &[f32], keys: &[U], scale: f32, scores: &mut [f32]) {
        let c = queries.len() / SIDE_BY_SIDE;
        let (lines, _) = scores.as_chunks_mut::<SIDE_BY_SIDE>();
        let mut maxima = [f32::NEG_INFINITY; SIDE_BY_SIDE];
        for (line, key) in lines.iter_mut().zip(keys.chunks_exact(c)) {
            let heads = line.iter_mut().zip(&mut maxima).zip(queries.chunks_exact(c));
            for ((score, maximum), query) in heads {
                *score = sum_of_pairs(query, key, |a, b| a * b.widen()) * scale;
                *maximum = if *score > *maximum { *score } else { *maximum };
            }
        }
        let mut sums = [0.0f32; SIDE_BY_SIDE];
        for line in lines.iter_mut() {
            for ((score, maximum), sum) in line.iter_mut().zip(&maxima).zip(&mut sums) {
                *score = exp(*score - maximum);
                *sum += *score;
            }
        }
        let inverse = sums.map(|sum| 1.0 / sum);
        for line in lines {
            line.iter_mut().zip(&inverse).for_each(|(score, inverse)| *score *= inverse);
        }
    }
}

for_each_isa! {
    /// Sums of `columns` of the values, weighed by probabilities: `[SIDE_BY_SIDE, COLUMNS]`.
    fn weigh[U: Number](
        values: &[U],
        c: usize,
        columns: std::ops::Range<usize>,
        probabilities: &[f32],
        sums: &mut [f32],
    ) {
        let mut lanes = [[0.0f32; COLUMNS]; SIDE_BY_SIDE];
        let (lines, _) = probabilities.as_chunks::<SIDE_BY_SIDE>();
        for (line, value) in lines.iter().zip(values.chunks_exact(c)) {
            let value = &value[columns.clone()];
            if let Some(value) = value.first_chunk::<COLUMNS>() {
                for (lanes, p) in lanes.iter_mut().zip(line) {
                    for (lane, value) in lanes.iter_mut().zip(value) {
                        *lane += p * value.widen();
                    }
                }
            } else {
                for (lanes, p) in lanes.iter_mut().zip(line) {
                    for (lane, value) in lanes.iter_mut().zip(value) {
                        *lane += p * value.widen();
                    }
                }
            }
        }
        for (sums, lanes) in sums.chunks_exact_mut(COLUMNS).zip(&lanes) {
            sums.copy_from_slice(lanes);
        }
    }
}

/// Puts heads from `first_head` on of rows `[b, heads, c]` into a column of `[b, g, capacity, c]`.
pub(super) fn append<T: Number, U: Number>(
    cache: &mut [U],
    [g, capacity, c]: [usize; 3],
    (qkv, first_head, heads): (&[T], usize, usize),
    column: usize,
) {
    for (row, cache) in cache.chunks_exact_mut(g * capacity * c).enumerate() {
        for (head, cache) in cache.chunks_exact_mut(capacity * c).enumerate() {
            let from = &qkv[(row * heads + first_head + head) * c..][..c];
            let to = &mut cache[column * c..][..c];
            to.iter_mut()
                .zip(from)
                .for_each(|(to, from)| *to = U::narrow(from.widen()));
        }
    }
}
