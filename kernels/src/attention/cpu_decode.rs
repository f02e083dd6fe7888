//! Attention of one query per row on slices, reading the keys directly from the cache.
//!
//! The columns of a row are split into pieces of a fixed size, which several threads can share;
//! with many head groups, each thread gets whole groups. The softmax is combined from the maxima
//! and sums of the pieces in column order, whatever the number of threads.

use std::mem::MaybeUninit;
use std::ops::Range;

use burn::tensor::{DType, bf16};
use rayon::prelude::*;

use super::cpu::Heads;
use super::cpu_softmax::{KEYS, Running, exponentiate, finite};
#[cfg(target_arch = "x86_64")]
use super::{cpu_decode_avx2, cpu_decode_avx512};
use crate::cpu::exp::exp;
use crate::cpu::isa::{Isa, for_each_isa};
use crate::cpu::number::Number;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::is_single_threaded;
use crate::cpu::scratch::{halves, with_parts};
use crate::cpu::sum::sum_of_pairs;

/// Columns per piece; also the row stride of scores and weights.
pub(super) const PIECE: usize = KEYS;

/// Cache bytes below which waking a second thread costs more than it saves.
const ONE_THREAD: usize = 1 << 16;

/// Minimum number of groups per thread at which threads get whole groups instead of pieces.
const MANY_GROUPS: usize = 4;

/// Values per head of a piece in addition to its `c` sums: the maximum and the sum of exponentials.
const STATISTICS: usize = 2;

/// Cached keys and values of the rows, `[b, g, capacity, c]`.
#[derive(Debug)]
pub(super) struct Cache<'a, U> {
    pub(super) keys: &'a [U],
    pub(super) values: &'a [U],
    pub(super) heads: Heads,
    pub(super) capacity: usize,
}

/// Keys or values of a piece.
#[derive(Debug, Clone, Copy)]
pub(super) struct CachePart<'a, U> {
    /// `[n, c]`.
    pub(super) numbers: &'a [U],
    /// Start of the data to prefetch, which has the same length.
    pub(super) next: *const U,
}

/// Query rows, and the range of columns that each attends to.
struct Rows<'a, T> {
    /// `[b, h + 2 g, c]`.
    qkv: &'a [T],
    /// First column of each row.
    starts: &'a [usize],
    /// End of the columns (exclusive), for all rows.
    end: usize,
}

/// Columns that a group of query heads attends to in its key/value head.
struct Piece {
    /// Row and key/value head: `row * g + kv_head`.
    group: usize,
    columns: Range<usize>,
    /// First column that the same thread probably reads next, relative to this group.
    next: usize,
    /// Index of the run that includes this piece: columns are split evenly into one consecutive run
    /// per thread.
    run: usize,
}

/// `[b, h + 2 g, c]` to `[b, h, c]`: row `i` attends to columns `starts[i]..end`, at least one.
pub(super) fn decode<T: Number, U: Number>(
    qkv: &[T],
    cache: &Cache<'_, U>,
    starts: &[usize],
    end: usize,
) -> Buffer<T> {
    let Heads { h, g, c, .. } = cache.heads;
    assert!(
        starts.iter().all(|&start| start < end),
        "each row must attend to at least one column"
    );
    let rows = Rows { qkv, starts, end };
    let groups = starts.len() * g;
    let columns: usize = starts.iter().map(|start| end - start).sum();
    let by_one_thread = is_single_threaded() || 2 * columns * g * c * size_of::<U>() <= ONE_THREAD;
    // SAFETY: every group of heads attends to at least one column and writes its output.
    unsafe {
        Buffer::filled(starts.len() * h * c, |out| {
            if by_one_thread || groups < MANY_GROUPS * rayon::current_num_threads() {
                cache.attend(&rows, 0..groups, by_one_thread, out);
                return;
            }
            let groups = out.par_chunks_exact_mut(h / g * c).enumerate();
            groups.for_each(|(i, out)| cache.attend(&rows, i..i + 1, true, out));
        })
    }
}

impl<U: Number> Cache<'_, U> {
    /// Writes the attention output of some groups; every element of `out` is written.
    fn attend<T: Number>(
        &self,
        rows: &Rows<'_, T>,
        groups: Range<usize>,
        by_one_thread: bool,
        out: &mut [MaybeUninit<T>],
    ) {
        let Heads { h, g, c, .. } = self.heads;
        let width = h / g * (c + STATISTICS);
        let n_runs = if by_one_thread {
            1
        } else {
            rayon::current_num_threads()
        };
        let pieces = self.pieces(rows, groups, n_runs);
        with_parts([pieces.len() * width, c, pieces.len()], |room| {
            let [found, joined, weights] = room;
            let run = |(run, found): (&[Piece], &mut [f32])| {
                for (piece, to) in run.iter().zip(found.chunks_exact_mut(width)) {
                    let (row, kv_head) = (piece.group / g, piece.group % g);
                    let first = row * self.heads.all() + self.heads.group(kv_head).start;
                    self.attend_to(&rows.qkv[first * c..][..h / g * c], piece, to);
                }
            };
            if by_one_thread {
                run((&pieces, &mut *found));
            } else {
                let mut shares = Vec::with_capacity(n_runs);
                let mut remaining = &mut *found;
                for run in pieces.chunk_by(|a, b| a.run == b.run) {
                    let (found, others) = remaining.split_at_mut(run.len() * width);
                    shares.push((run, found));
                    remaining = others;
                }
                shares.into_par_iter().for_each(run);
            }
            let mut remaining = &*found;
            let groups = pieces.chunk_by(|a, b| a.group == b.group);
            for (group, out) in groups.zip(out.chunks_exact_mut(h / g * c)) {
                let (found, others) = remaining.split_at(group.len() * width);
                remaining = others;
                join(found, width, [&mut *joined, &mut *weights], out);
            }
        });
    }

    /// The columns of some groups of heads, split into pieces and distributed over `n_runs` runs.
    fn pieces<T>(&self, rows: &Rows<'_, T>, groups: Range<usize>, n_runs: usize) -> Vec<Piece> {
        let g = self.heads.g;
        let visible = |group: usize| rows.starts[group / g]..rows.end;
        let n_columns: usize = groups.clone().map(|group| visible(group).len()).sum();
        let mut n_before = 0;
        let mut pieces: Vec<Piece> = Vec::new();
        for group in groups {
            for first in visible(group).step_by(PIECE) {
                let columns = first..(first + PIECE).min(rows.end);
                // The first run has the remainder, because the calling thread starts it first.
                let run = n_runs * n_before / n_columns;
                n_before += columns.len();
                pieces.push(Piece {
                    group,
                    next: if first + PIECE < rows.end {
                        first + PIECE
                    } else {
                        self.capacity + visible(group).start
                    },
                    columns,
                    run,
                });
            }
        }
        if n_runs > 1 {
            // Another thread reads the data after a run. The last piece of a run therefore
            // prefetches its own data, which was just read and costs nothing.
            for run in pieces.chunk_by_mut(|a, b| a.run == b.run) {
                let last = &mut run[run.len() - 1];
                last.next = last.columns.start;
            }
        }
        pieces
    }

    /// Weighted sums of a piece's values for its group's queries, `[heads, c]`, then each head's
    /// maximum and sum of exponentials.
    fn attend_to<T: Number>(&self, queries: &[T], piece: &Piece, to: &mut [f32]) {
        let c = self.heads.c;
        let n_heads = queries.len() / c;
        let n = piece.columns.len();
        let first = piece.group * self.capacity + piece.columns.start;
        let used = first * c..(first + n) * c;
        let (keys, values) = (&self.keys[used.clone()], &self.values[used]);
        let next = piece.group * self.capacity + piece.next;
        let keys = CachePart {
            numbers: keys,
            next: values.as_ptr(),
        };
        let values = CachePart {
            numbers: values,
            next: self.keys.as_ptr().wrapping_add(next * c),
        };
        let (sums, statistics) = to.split_at_mut(n_heads * c);
        with_parts([n_heads * PIECE, n_heads * PIECE], |[scores, weights]| {
            all_scores(queries, keys, c, scores);
            let padded = n.next_multiple_of(32);
            for scores in scores.chunks_exact_mut(PIECE) {
                scores[n..padded].fill(f32::NEG_INFINITY);
            }
            let mut states = vec![Running::START; n_heads];
            let scale = self.heads.scale;
            if has_pairs::<T, U>() {
                let weights = halves(weights);
                exponentiate(scores, padded, scale, &mut states, weights);
                weigh_pairs(values, c, weights, sums);
            } else {
                exponentiate(scores, padded, scale, &mut states, weights);
                weighted_sums(values, c, weights, sums);
            }
            for (to, state) in statistics.chunks_exact_mut(STATISTICS).zip(states) {
                to.copy_from_slice(&[state.maximum, state.sum]);
            }
        });
    }
}

fn all_scores<T: Number, U: Number>(
    queries: &[T],
    keys: CachePart<'_, U>,
    c: usize,
    scores: &mut [f32],
) {
    match Isa::detect() {
        // SAFETY: the CPU feature was detected; the piece has columns and the head size is not 0.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { cpu_decode_avx512::scores(queries, keys, c, scores) },
        // SAFETY: the CPU feature was detected; rows are whole registers.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 if c.is_multiple_of(8) => unsafe {
            cpu_decode_avx2::scores(queries, keys, c, scores);
        },
        _ => scores_in_loops(queries, keys.numbers, c, scores),
    }
}

fn weighted_sums<U: Number>(values: CachePart<'_, U>, c: usize, weights: &[f32], sums: &mut [f32]) {
    match Isa::detect() {
        // SAFETY: the CPU feature was detected; `sums` and `weights` have a row for each head.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { cpu_decode_avx512::weighted_sums(values, c, weights, sums) },
        // SAFETY: the CPU feature was detected; rows are whole registers, one per head as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 if c.is_multiple_of(8) => unsafe {
            cpu_decode_avx2::weighted_sums(values, c, weights, sums);
        },
        _ => weighted_sums_in_loops(values.numbers, c, weights, sums),
    }
}

/// Whether weights are rounded to bf16 and multiplied with values in pairs.
fn has_pairs<T: Number, U: Number>() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has = crate::cpu::isa::has_pairs();
    #[cfg(not(target_arch = "x86_64"))]
    let has = false;
    has && T::DTYPE == DType::BF16 && U::DTYPE == DType::BF16
}

/// Weighted sum of values for bf16 weights.
///
/// # Panics
///
/// If [`has_pairs`] is false.
fn weigh_pairs<U: Number>(
    CachePart { numbers, next }: CachePart<'_, U>,
    c: usize,
    weights: &[bf16],
    sums: &mut [f32],
) {
    assert!(has_pairs::<bf16, U>(), "bf16 pairs must be supported");
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (numbers, next, c, weights, sums);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the CPU feature was detected, and the values are bf16; `sums` and `weights` have a
    // row for each head.
    unsafe {
        let values = CachePart {
            numbers: std::slice::from_raw_parts(numbers.as_ptr().cast(), numbers.len()),
            next: next.cast(),
        };
        cpu_decode_avx512::weigh_pairs(values, c, weights, sums);
    }
}

for_each_isa! {
    fn scores_in_loops[T: Number, U: Number](
        queries: &[T],
        keys: &[U],
        c: usize,
        scores: &mut [f32],
    ) {
        for (query, scores) in queries.chunks_exact(c).zip(scores.chunks_exact_mut(PIECE)) {
            for (score, key) in scores.iter_mut().zip(keys.chunks_exact(c)) {
                *score = sum_of_pairs(query, key, |a, b| a.widen() * b.widen());
            }
        }
    }
}

for_each_isa! {
    fn weighted_sums_in_loops[U: Number](values: &[U], c: usize, weights: &[f32], sums: &mut [f32]) {
        sums.fill(0.0);
        for (sums, weights) in sums.chunks_exact_mut(c).zip(weights.chunks_exact(PIECE)) {
            for (value, weight) in values.chunks_exact(c).zip(weights) {
                for (sum, value) in sums.iter_mut().zip(value) {
                    *sum += weight * value.widen();
                }
            }
        }
    }
}

for_each_isa! {
    /// Combines the pieces of a group into the output of its heads; `room` has working memory for
    /// `c` elements and for at least one element per piece.
    fn join[T: Number](
        partials: &[f32],
        width: usize,
        room: [&mut [f32]; 2],
        out: &mut [MaybeUninit<T>],
    ) {
        let [joined, weights] = room;
        let c = joined.len();
        let n_heads = out.len() / c;
        for (head, out) in out.chunks_exact_mut(c).enumerate() {
            let statistics = n_heads * c + head * STATISTICS;
            let pieces = partials.chunks_exact(width);
            let maxima = pieces.clone().map(|piece| piece[statistics]);
            let maximum = maxima.fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a });
            let mut total = 0.0;
            for (weight, piece) in weights.iter_mut().zip(pieces.clone()) {
                *weight = exp(piece[statistics] - finite(maximum));
                total += piece[statistics + 1] * *weight;
            }
            joined.fill(0.0);
            for (weight, piece) in weights.iter().zip(pieces) {
                let factor = weight / total;
                for (joined, sum) in joined.iter_mut().zip(&piece[head * c..][..c]) {
                    *joined += factor * sum;
                }
            }
            for (out, &value) in out.iter_mut().zip(&*joined) {
                out.write(T::narrow(value));
            }
        }
    }
}

/// Writes the heads of rows `[b, heads, c]` starting at `first_head` to a column of `[b, g,
/// capacity, c]`.
pub(super) fn append<T: Number, U: Number>(
    cache: &mut [U],
    [g, capacity, c]: [usize; 3],
    qkv: &[T],
    first_head: usize,
    heads: usize,
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

#[cfg(test)]
mod tests {
    use burn::tensor::bf16;

    use super::{
        CachePart, PIECE, all_scores, has_pairs, scores_in_loops, weigh_pairs, weighted_sums,
        weighted_sums_in_loops,
    };
    use crate::cpu::number::Number;

    /// Part of a cache, without data to prefetch.
    fn part<U>(numbers: &[U]) -> CachePart<'_, U> {
        CachePart {
            numbers,
            next: std::ptr::null(),
        }
    }

    /// Values in -1..1 that are exact in bf16.
    fn numbers<T: Number>(n: usize) -> Vec<T> {
        let value = |i: usize| ((i * 37 + i / 7 * 11) % 129) as f32 / 64.0 - 1.0;
        (0..n).map(|i| T::narrow(value(i))).collect()
    }

    #[test]
    fn weighted_sums_in_pairs_match_plain_loops() {
        if !has_pairs::<bf16, bf16>() {
            return;
        }
        for (heads, n, c) in [
            (1, 1, 2),
            (3, 128, 64),
            (5, 77, 96),
            (9, 17, 7),
            (4, 50, 40),
        ] {
            let values = numbers::<bf16>(n * c);
            let mut weights = numbers::<bf16>(heads * PIECE);
            for row in weights.chunks_exact_mut(PIECE) {
                row[n..].fill(bf16::ZERO);
            }
            let floats: Vec<f32> = weights.iter().map(|w| w.to_f32()).collect();
            let mut sums = [(); 2].map(|()| vec![f32::NAN; heads * c]);
            weigh_pairs(part(&values), c, &weights, &mut sums[0]);
            weighted_sums_in_loops(&values, c, &floats, &mut sums[1]);
            let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4;
            assert!(sums[0].iter().zip(&sums[1]).all(near), "{heads} {n} {c}");
        }
    }

    fn compare<T: Number, U: Number>() {
        for (heads, n, c) in [
            (1, 1, 2),
            (3, 128, 64),
            (4, 50, 64),
            (5, 77, 96),
            (9, 17, 7),
        ] {
            let (queries, cached) = (numbers::<T>(heads * c), numbers::<U>(n * c));
            let mut scores = [(); 2].map(|()| vec![0.0; heads * PIECE]);
            all_scores(&queries, part(&cached), c, &mut scores[0]);
            scores_in_loops(&queries, &cached, c, &mut scores[1]);
            let weights = numbers::<f32>(heads * PIECE);
            let mut sums = [(); 2].map(|()| vec![0.0; heads * c]);
            weighted_sums(part(&cached), c, &weights, &mut sums[0]);
            weighted_sums_in_loops(&cached, c, &weights, &mut sums[1]);
            for head in 0..heads {
                let (row, columns) = (head * PIECE..head * PIECE + n, head * c..(head + 1) * c);
                let near =
                    |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4);
                assert!(near(&scores[0][row.clone()], &scores[1][row]));
                assert!(near(&sums[0][columns.clone()], &sums[1][columns]));
            }
        }
    }

    #[test]
    fn vector_instructions_match_plain_loops() {
        compare::<f32, f32>();
        compare::<bf16, bf16>();
        compare::<f32, bf16>();
        compare::<bf16, f32>();
    }
}
