//! The products of decoding on CPUs with AVX2: the cache is read once for three query heads that share
//! it.
//!
//! As with AVX-512, products of one piece ask for what will be read after it, into the second level.

use std::arch::x86_64::{
    _mm_add_ps, _mm_storeu_ps, _mm256_add_ps, _mm256_broadcast_ss, _mm256_castps256_ps128,
    _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_setzero_ps,
};

use super::cpu_decode::{CachePart, PIECE};
use crate::cpu::lanes_avx2::{LANES, load, store, transposed_quads};
use crate::cpu::number::Number;
use crate::cpu::prefetch::ask_to_read_later;

/// Keys whose sums are kept in registers.
const KEYS: usize = 4;

/// Heads that are multiplied with a key, or weigh a value, while it is in a register.
const HEADS: usize = 3;

/// Registers of values that are summed at once.
const VECTORS: usize = 4;

/// Products of `[heads, c]` queries with `[n, c]` keys: `[heads, PIECE]`, of which a multiple of
/// 4 columns is written, those beyond `n` with arbitrary values. As many numbers from `next` on will
/// be read soon.
///
/// # Safety
///
/// AVX2; `c` is a multiple of 8 and not 0.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn scores<T: Number, U: Number>(
    queries: &[T],
    CachePart {
        numbers: keys,
        next,
    }: CachePart<'_, U>,
    c: usize,
    scores: &mut [f32],
) {
    let heads = queries
        .chunks(HEADS * c)
        .zip(scores.chunks_mut(HEADS * PIECE));
    for (group, (queries, scores)) in heads.enumerate() {
        // The first heads ask for all that others will need, too.
        let next = (group == 0).then_some(next);
        let to = scores;
        // SAFETY: as the caller promises; each arm passes the number of heads.
        unsafe {
            match queries.len() / c {
                1 => scores_of::<T, U, 1>(queries, keys, next, c, to),
                2 => scores_of::<T, U, 2>(queries, keys, next, c, to),
                _ => scores_of::<T, U, HEADS>(queries, keys, next, c, to),
            }
        }
    }
}

/// # Safety
///
/// As for [`scores`], with `R` heads.
#[target_feature(enable = "avx2,fma")]
unsafe fn scores_of<T: Number, U: Number, const R: usize>(
    queries: &[T],
    keys: &[U],
    next: Option<*const U>,
    c: usize,
    scores: &mut [f32],
) {
    let n = keys.len() / c;
    assert!(
        queries.len() == R * c && scores.len() >= (R - 1) * PIECE + n.next_multiple_of(KEYS),
        "queries and room for their scores"
    );
    for first in (0..n).step_by(KEYS) {
        // Keys that do not exist repeat the last.
        let key = |i: usize| keys.as_ptr().wrapping_add((first + i).min(n - 1) * c);
        let [k0, k1, k2, k3] = [key(0), key(1), key(2), key(3)];
        let mut sums = [[_mm256_setzero_ps(); KEYS]; R];
        for at in (0..c).step_by(LANES) {
            // SAFETY: `c` numbers of each query and key.
            unsafe {
                let keys = [
                    load(k0.add(at)),
                    load(k1.add(at)),
                    load(k2.add(at)),
                    load(k3.add(at)),
                ];
                for (head, sums) in sums.iter_mut().enumerate() {
                    let query = load(queries.as_ptr().add(head * c + at));
                    for (sum, &key) in sums.iter_mut().zip(&keys) {
                        *sum = _mm256_fmadd_ps(query, key, *sum);
                    }
                }
            }
        }
        if let Some(next) = next {
            ask_for(next.wrapping_add(first * c), KEYS * c);
        }
        for (head, &sums) in sums.iter().enumerate() {
            let [s0, s1, s2, s3] = transposed_quads(sums);
            let sums = _mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(s2, s3));
            let sums = _mm_add_ps(
                _mm256_castps256_ps128(sums),
                _mm256_extractf128_ps::<1>(sums),
            );
            // SAFETY: room was checked.
            unsafe { _mm_storeu_ps(scores.as_mut_ptr().add(head * PIECE + first), sums) };
        }
    }
}

/// Sums of `[n, c]` values, weighed by the first `n` columns of `[heads, PIECE]` weights, to
/// `[heads, c]`. As many numbers from `next` on will be read soon.
///
/// # Safety
///
/// AVX2; `c` is a multiple of 8, and `sums` and `weights` have a row for each head.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn weigh<U: Number>(
    CachePart {
        numbers: values,
        next,
    }: CachePart<'_, U>,
    c: usize,
    weights: &[f32],
    sums: &mut [f32],
) {
    let heads = weights
        .chunks(HEADS * PIECE)
        .zip(sums.chunks_mut(HEADS * c));
    for (group, (weights, sums)) in heads.enumerate() {
        for first in (0..c).step_by(VECTORS * LANES) {
            let next = (group == 0 && first == 0).then_some(next);
            let values = Columns {
                values,
                next,
                first,
                c,
            };
            let vectors = ((c - first) / LANES).min(VECTORS);
            // SAFETY: as the caller promises; each arm passes the numbers of heads and registers.
            unsafe {
                match (sums.len() / c, vectors) {
                    (1, VECTORS) => weighed::<U, 1, VECTORS>(values, weights, sums),
                    (2, VECTORS) => weighed::<U, 2, VECTORS>(values, weights, sums),
                    (_, VECTORS) => weighed::<U, HEADS, VECTORS>(values, weights, sums),
                    (1, _) => rest::<U, 1>(values, weights, sums),
                    (2, _) => rest::<U, 2>(values, weights, sums),
                    _ => rest::<U, HEADS>(values, weights, sums),
                }
            }
        }
    }
}

/// Columns of `[n, c]` values from `first` on.
struct Columns<'a, U> {
    values: &'a [U],
    /// Where numbers lie that will be read soon, if they are to be asked for.
    next: Option<*const U>,
    first: usize,
    c: usize,
}

impl<U> Clone for Columns<'_, U> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<U> Copy for Columns<'_, U> {}

/// The last columns, a register after the other.
///
/// # Safety
///
/// As for [`weighed`].
#[target_feature(enable = "avx2,fma")]
unsafe fn rest<U: Number, const R: usize>(
    values: Columns<'_, U>,
    weights: &[f32],
    sums: &mut [f32],
) {
    for first in (values.first..values.c).step_by(LANES) {
        // SAFETY: as the caller promises.
        unsafe { weighed::<U, R, 1>(Columns { first, ..values }, weights, sums) };
    }
}

/// `8 * V` columns from `first` on of `R` heads.
///
/// # Safety
///
/// As for [`weigh`].
#[target_feature(enable = "avx2,fma")]
unsafe fn weighed<U: Number, const R: usize, const V: usize>(
    Columns {
        values,
        next,
        first,
        c,
    }: Columns<'_, U>,
    weights: &[f32],
    sums: &mut [f32],
) {
    let n = values.len() / c;
    assert!(
        sums.len() == R * c && weights.len() >= (R - 1) * PIECE + n && first + V * LANES <= c,
        "weights and sums of the heads"
    );
    let mut held = [[_mm256_setzero_ps(); V]; R];
    for row in 0..n {
        if let Some(next) = next {
            ask_for(next.wrapping_add(row * c), c);
        }
        // SAFETY: rows of `c` values, and a weight of each for every head.
        unsafe {
            let from = values.as_ptr().add(row * c + first);
            let mut numbers = [_mm256_setzero_ps(); V];
            for (v, numbers) in numbers.iter_mut().enumerate() {
                *numbers = load(from.add(LANES * v));
            }
            for (head, held) in held.iter_mut().enumerate() {
                let weight = _mm256_broadcast_ss(&*weights.as_ptr().add(head * PIECE + row));
                for (held, &numbers) in held.iter_mut().zip(&numbers) {
                    *held = _mm256_fmadd_ps(weight, numbers, *held);
                }
            }
        }
    }
    for (head, held) in held.into_iter().enumerate() {
        for (v, held) in held.into_iter().enumerate() {
            // SAFETY: within the sums of the head.
            unsafe { store(sums.as_mut_ptr().add(head * c + first + LANES * v), held) };
        }
    }
}

/// Has so many numbers brought to the second level.
#[inline(always)]
fn ask_for<U>(first: *const U, n: usize) {
    for line in 0..(n * size_of::<U>()).div_ceil(64) {
        ask_to_read_later(first.wrapping_byte_add(64 * line));
    }
}
