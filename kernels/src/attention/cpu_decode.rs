//! Attention of one query a row on slices, to keys that are read in the cache where they lie.
//!
//! The columns of a row are cut into pieces of a fixed size, which several threads can take, or
//! whole groups of heads where there are many; softmax of the whole is put together from the pieces'
//! maxima and sums, in the order of the columns, whoever computed them.

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
use crate::cpu::rows::is_alone;
use crate::cpu::scratch::{halves, with_parts};
use crate::cpu::sum::sum_of_pairs;

/// Columns of a piece, and numbers from one row of scores or weights to the next.
pub(super) const PIECE: usize = KEYS;

/// Bytes of the cache below which waking a second thread costs more than it brings.
const ONE_THREAD: usize = 1 << 16;

/// Groups a thread from which on threads share groups, not pieces.
const MANY_GROUPS: usize = 4;

/// What a head of a piece leaves besides its `c` sums: its maximum and its sum of exponentials.
const STATISTICS: usize = 2;

/// Keys and values of the rows, `[b, g, capacity, c]`.
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
    /// Where as many numbers lie that will be read soon.
    pub(super) next: *const U,
}

/// Rows of queries, those of the groups of heads that share keys in turn, and what they see.
struct Rows<'a, T> {
    /// `[b, h + 2 g, c]`.
    qkv: &'a [T],
    /// First column of each row.
    starts: &'a [usize],
    /// The column behind the last one of all.
    end: usize,
}

/// Columns that a group of query heads sees in its key/value head.
struct Piece {
    /// Row and key/value head: `row * g + kv_head`.
    group: usize,
    columns: Range<usize>,
    /// First column of what the same thread probably reads next, as if of the same group.
    next: usize,
    /// Who computes it: threads share the columns evenly, each some that follow each other.
    run: usize,
}

/// `[b, h + 2 g, c]` to `[b, h, c]`: row `i` sees columns `starts[i]..end`, at least one.
pub(super) fn decode<T: Number, U: Number>(
    qkv: &[T],
    cache: &Cache<'_, U>,
    starts: &[usize],
    end: usize,
) -> Buffer<T> {
    let Heads { h, g, c, .. } = cache.heads;
    assert!(starts.iter().all(|&start| start < end), "columns to see");
    let rows = Rows { qkv, starts, end };
    let groups = starts.len() * g;
    let columns: usize = starts.iter().map(|start| end - start).sum();
    let by_one_thread = is_alone() || 2 * columns * g * c * size_of::<U>() <= ONE_THREAD;
    // SAFETY: every group of heads sees columns, and is written.
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
    /// Attention of some groups to `out`, of which every number is written.
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
                let mut rest = &mut *found;
                for run in pieces.chunk_by(|a, b| a.run == b.run) {
                    let (found, others) = rest.split_at_mut(run.len() * width);
                    shares.push((run, found));
                    rest = others;
                }
                shares.into_par_iter().for_each(run);
            }
            let mut rest = &*found;
            let groups = pieces.chunk_by(|a, b| a.group == b.group);
            for (group, out) in groups.zip(out.chunks_exact_mut(h / g * c)) {
                let (found, others) = rest.split_at(group.len() * width);
                rest = others;
                join(found, width, [&mut *joined, &mut *weights], out);
            }
        });
    }

    /// What groups of heads see, cut into pieces, for so many runs.
    fn pieces<T>(&self, rows: &Rows<'_, T>, groups: Range<usize>, n_runs: usize) -> Vec<Piece> {
        let g = self.heads.g;
        let seen = |group: usize| rows.starts[group / g]..rows.end;
        let all: usize = groups.clone().map(|group| seen(group).len()).sum();
        let mut before = 0;
        let mut pieces: Vec<Piece> = Vec::new();
        for group in groups {
            for first in seen(group).step_by(PIECE) {
                let columns = first..(first + PIECE).min(rows.end);
                // The first run, which is the caller's own, starts first and has what is left over.
                let run = n_runs * before / all;
                before += columns.len();
                pieces.push(Piece {
                    group,
                    next: if first + PIECE < rows.end {
                        first + PIECE
                    } else {
                        self.capacity + seen(group).start
                    },
                    columns,
                    run,
                });
            }
        }
        if n_runs > 1 {
            // What follows a run is read by another thread. What was just read costs nothing.
            for run in pieces.chunk_by_mut(|a, b| a.run == b.run) {
                let last = &mut run[run.len() - 1];
                last.next = last.columns.start;
            }
        }
        pieces
    }

    /// Weighed sums of a piece's values for its group's queries, `[heads, c]`, then the maximum and
    /// the sum of each head's exponentials.
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
                weigh(values, c, weights, sums);
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
        // SAFETY: detected; a piece has columns, and a head numbers.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { cpu_decode_avx512::scores(queries, keys, c, scores) },
        // SAFETY: detected, with whole registers of numbers.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 if c.is_multiple_of(8) => unsafe {
            cpu_decode_avx2::scores(queries, keys, c, scores);
        },
        _ => scores_in_loops(queries, keys.numbers, c, scores),
    }
}

fn weigh<U: Number>(values: CachePart<'_, U>, c: usize, weights: &[f32], sums: &mut [f32]) {
    match Isa::detect() {
        // SAFETY: detected; `sums` and `weights` have a row for each head.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { cpu_decode_avx512::weigh(values, c, weights, sums) },
        // SAFETY: detected; whole registers of numbers, and rows as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 if c.is_multiple_of(8) => unsafe {
            cpu_decode_avx2::weigh(values, c, weights, sums);
        },
        _ => weigh_in_loops(values.numbers, c, weights, sums),
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

/// The same for weights of bf16.
///
/// # Panics
///
/// Without [`has_pairs`].
fn weigh_pairs<U: Number>(
    CachePart { numbers, next }: CachePart<'_, U>,
    c: usize,
    weights: &[bf16],
    sums: &mut [f32],
) {
    assert!(has_pairs::<bf16, U>(), "pairs of values");
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (numbers, next, c, weights, sums);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: detected, and the values are bf16; `sums` and `weights` have a row for each head.
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
    fn weigh_in_loops[U: Number](values: &[U], c: usize, weights: &[f32], sums: &mut [f32]) {
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
    /// What the pieces of a group found, to the result of its heads; there is working memory for `c`
    /// numbers and for at least one number a piece.
    fn join[T: Number](
        found: &[f32],
        width: usize,
        room: [&mut [f32]; 2],
        out: &mut [MaybeUninit<T>],
    ) {
        let [joined, weights] = room;
        let c = joined.len();
        let n_heads = out.len() / c;
        for (head, out) in out.chunks_exact_mut(c).enumerate() {
            let statistics = n_heads * c + head * STATISTICS;
            let pieces = found.chunks_exact(width);
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

/// Puts heads from `first_head` on of rows `[b, heads, c]` into a column of `[b, g, capacity, c]`.
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
        CachePart, PIECE, all_scores, has_pairs, scores_in_loops, weigh, weigh_in_loops,
        weigh_pairs,
    };
    use crate::cpu::number::Number;

    /// Numbers behind which nothing is read.
    fn part<U>(numbers: &[U]) -> CachePart<'_, U> {
        CachePart {
            numbers,
            next: std::ptr::null(),
        }
    }

    /// Numbers in -1..1 that bf16 can hold.
    fn numbers<T: Number>(n: usize) -> Vec<T> {
        let value = |i: usize| ((i * 37 + i / 7 * 11) % 129) as f32 / 64.0 - 1.0;
        (0..n).map(|i| T::narrow(value(i))).collect()
    }

    #[test]
    fn values_weighed_in_pairs_agree_with_plain_loops() {
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
            weigh_in_loops(&values, c, &floats, &mut sums[1]);
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
            weigh(part(&cached), c, &weights, &mut sums[0]);
            weigh_in_loops(&cached, c, &weights, &mut sums[1]);
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
    fn the_best_instructions_agree_with_plain_loops() {
        compare::<f32, f32>();
        compare::<bf16, bf16>();
        compare::<f32, bf16>();
        compare::<bf16, f32>();
    }
}
