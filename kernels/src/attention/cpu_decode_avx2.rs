//! The products of decoding on CPUs with AVX2: the cache is read once per three query heads that
//! share it.
//!
//! As with AVX-512, the products of one piece prefetch the data that is read next into the L2
//! cache.

use std::arch::x86_64::{
    _mm_add_ps, _mm_storeu_ps, _mm256_add_ps, _mm256_broadcast_ss, _mm256_castps256_ps128,
    _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_setzero_ps,
};

use super::cpu_decode::{CachePart, PIECE};
use crate::cpu::lanes_avx2::{LANES, load, store, transposed_quads};
use crate::cpu::number::Number;
use crate::cpu::prefetch::prefetch_l2;

/// Keys whose sums are kept in registers.
const KEYS: usize = 4;

/// Heads that use a key or value while it is in a register.
const HEADS: usize = 3;

/// Registers of values that are summed at once.
const VECTORS: usize = 4;

/// Products of `[heads, c]` queries with `[n, c]` keys: `[heads, PIECE]`. A multiple of 4 columns
/// is written; those beyond `n` have arbitrary values. Prefetches the same number of elements
/// starting at `next`.
///
/// # Safety
///
/// AVX2; `c` is a multiple of 8 and not 0.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn scores<T: Number, U: Number>(
    queries: &[T],
    keys: CachePart<'_, U>,
    c: usize,
    scores: &mut [f32],
) {
    let heads = queries
        .chunks(HEADS * c)
        .zip(scores.chunks_mut(HEADS * PIECE));
    for (group, (queries, scores)) in heads.enumerate() {
        // The first heads also prefetch for the others.
        let next = (group == 0).then_some(keys.next);
        let (keys, to) = (keys.numbers, scores);
        // SAFETY: guaranteed by the caller; each arm passes the number of heads.
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
/// Same as [`scores`], with `R` heads.
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
        "the target must have space for the scores of all queries"
    );
    for first in (0..n).step_by(KEYS) {
        // Keys beyond `n` repeat the last key.
        let key = |i: usize| keys.as_ptr().wrapping_add((first + i).min(n - 1) * c);
        let [k0, k1, k2, k3] = [key(0), key(1), key(2), key(3)];
        let mut sums = [[_mm256_setzero_ps(); KEYS]; R];
        for depth in (0..c).step_by(LANES) {
            // SAFETY: each query and key has `c` elements.
            unsafe {
                let keys = [
                    load(k0.add(depth)),
                    load(k1.add(depth)),
                    load(k2.add(depth)),
                    load(k3.add(depth)),
                ];
                for (head, sums) in sums.iter_mut().enumerate() {
                    let query = load(queries.as_ptr().add(head * c + depth));
                    for (sum, &key) in sums.iter_mut().zip(&keys) {
                        *sum = _mm256_fmadd_ps(query, key, *sum);
                    }
                }
            }
        }
        if let Some(next) = next {
            prefetch_bytes(next.wrapping_add(first * c), KEYS * c);
        }
        for (head, &sums) in sums.iter().enumerate() {
            let [s0, s1, s2, s3] = transposed_quads(sums);
            let sums = _mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(s2, s3));
            let sums = _mm_add_ps(
                _mm256_castps256_ps128(sums),
                _mm256_extractf128_ps::<1>(sums),
            );
            // SAFETY: the space was checked above.
            unsafe { _mm_storeu_ps(scores.as_mut_ptr().add(head * PIECE + first), sums) };
        }
    }
}

/// Weighted sums of `[n, c]` values to `[heads, c]`; the weights are the first `n` columns of
/// `[heads, PIECE]`. Prefetches the same number of elements starting at `next`.
///
/// # Safety
///
/// AVX2; `c` is a multiple of 8, and `sums` and `weights` have a row for each head.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn weighted_sums<U: Number>(
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
            // SAFETY: guaranteed by the caller; each arm passes the numbers of heads and registers.
            unsafe {
                match (sums.len() / c, vectors) {
                    (1, VECTORS) => weighted_sums_of_heads::<U, 1, VECTORS>(values, weights, sums),
                    (2, VECTORS) => weighted_sums_of_heads::<U, 2, VECTORS>(values, weights, sums),
                    (_, VECTORS) => {
                        weighted_sums_of_heads::<U, HEADS, VECTORS>(values, weights, sums)
                    }
                    (1, _) => weigh_last_columns::<U, 1>(values, weights, sums),
                    (2, _) => weigh_last_columns::<U, 2>(values, weights, sums),
                    _ => weigh_last_columns::<U, HEADS>(values, weights, sums),
                }
            }
        }
    }
}

/// Columns of `[n, c]` values starting at `first`.
struct Columns<'a, U> {
    values: &'a [U],
    /// Start of the data to prefetch, if any.
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

/// The last columns, one register at a time.
///
/// # Safety
///
/// Same as [`weighted_sums_of_heads`].
#[target_feature(enable = "avx2,fma")]
unsafe fn weigh_last_columns<U: Number, const R: usize>(
    values: Columns<'_, U>,
    weights: &[f32],
    sums: &mut [f32],
) {
    for first in (values.first..values.c).step_by(LANES) {
        // SAFETY: guaranteed by the caller.
        unsafe { weighted_sums_of_heads::<U, R, 1>(Columns { first, ..values }, weights, sums) };
    }
}

/// `8 * V` columns of `R` heads, starting at `first`.
///
/// # Safety
///
/// Same as [`weighted_sums`].
#[target_feature(enable = "avx2,fma")]
unsafe fn weighted_sums_of_heads<U: Number, const R: usize, const V: usize>(
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
        "there must be weights and sums for all heads"
    );
    let mut totals = [[_mm256_setzero_ps(); V]; R];
    for row in 0..n {
        if let Some(next) = next {
            prefetch_bytes(next.wrapping_add(row * c), c);
        }
        // SAFETY: each value row has `c` elements, and every head has a weight for each row.
        unsafe {
            let from = values.as_ptr().add(row * c + first);
            let mut numbers = [_mm256_setzero_ps(); V];
            for (v, numbers) in numbers.iter_mut().enumerate() {
                *numbers = load(from.add(LANES * v));
            }
            for (head, totals) in totals.iter_mut().enumerate() {
                let weight = _mm256_broadcast_ss(&*weights.as_ptr().add(head * PIECE + row));
                for (totals, &numbers) in totals.iter_mut().zip(&numbers) {
                    *totals = _mm256_fmadd_ps(weight, numbers, *totals);
                }
            }
        }
    }
    for (head, totals) in totals.into_iter().enumerate() {
        for (v, totals) in totals.into_iter().enumerate() {
            // SAFETY: within the head's sums.
            unsafe { store(sums.as_mut_ptr().add(head * c + first + LANES * v), totals) };
        }
    }
}

/// Prefetches elements into the L2 cache.
#[inline(always)]
fn prefetch_bytes<U>(first: *const U, n: usize) {
    for line in 0..(n * size_of::<U>()).div_ceil(64) {
        prefetch_l2(first.wrapping_byte_add(64 * line));
    }
}
