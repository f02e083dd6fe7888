//! The products of decoding on CPUs with AVX-512: the cache is read once for all query heads that
//! share it.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, __mmask32, _MM_HINT_T1, _mm_prefetch, _mm512_add_ps,
    _mm512_castpd_ps, _mm512_castps_pd, _mm512_dpbf16_ps, _mm512_fmadd_ps,
    _mm512_maskz_loadu_epi16, _mm512_permutex2var_ps, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_setzero_si512, _mm512_shuffle_f32x4, _mm512_storeu_ps,
    _mm512_unpackhi_epi16, _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_epi16,
    _mm512_unpacklo_pd, _mm512_unpacklo_ps,
};

use burn::tensor::{DType, bf16};

use super::cpu_decode::{CachePart, PIECE};
use crate::cpu::isa::has_pairs;
use crate::cpu::lanes_avx512::{lanes, load, store};
use crate::cpu::number::Number;

/// Keys that are multiplied in parallel.
const BLOCK: usize = 16;

/// Keys of a block whose sums are kept in registers for all heads.
const QUAD: usize = 4;

/// Heads that use a key or value while it is in a register.
const HEADS: usize = 4;

/// Prefetch distance in rows of keys or values, a multiple of [`BLOCK`].
///
/// The cache is read from memory, because a token reads all weights between two uses of it. The
/// products therefore prefetch into L2 the rows that they read next and, past the end of a piece,
/// the rows of the next piece. Nothing else is prefetched: a core can track about two dozen
/// outstanding lines, and prefetches from L2 to L1 would compete for them.
const ROWS_AHEAD: usize = 48;

/// Columns of values that are summed in registers.
const COLUMNS: usize = 64;

/// Products of `[heads, c]` queries with `[n, c]` keys: `[heads, PIECE]`. A multiple of 16 columns
/// is written; those beyond `n` have arbitrary values. Prefetches the same number of elements
/// starting at `next`.
///
/// # Safety
///
/// AVX-512; `c` is not 0.
pub(super) unsafe fn scores<T: Number, U: Number>(
    queries: &[T],
    keys: CachePart<'_, U>,
    c: usize,
    scores: &mut [f32],
) {
    let pairs = T::DTYPE == DType::BF16 && U::DTYPE == DType::BF16 && has_pairs();
    // SAFETY: guaranteed by the caller; the bf16 instructions were detected.
    unsafe {
        match (pairs, c) {
            (true, 64) => scores_of_pairs::<T, U, 64>(queries, keys, c, scores),
            (true, _) => scores_of_pairs::<T, U, 0>(queries, keys, c, scores),
            (false, 64) => scores_of_numbers::<T, U, 64>(queries, keys, c, scores),
            (false, _) => scores_of_numbers::<T, U, 0>(queries, keys, c, scores),
        }
    }
}

/// Defines a function for [`scores`] with the given CPU features and products.
macro_rules! scores_in_blocks {
    ($name:ident, $features:literal, $sums:ident) => {
        /// # Safety
        ///
        /// The CPU has the features; `C` is 0, or equals `c` and is a multiple of 32; otherwise as
        /// for [`scores`].
        #[target_feature(enable = $features)]
        unsafe fn $name<T: Number, U: Number, const C: usize>(
            queries: &[T],
            CachePart {
                numbers: keys,
                next,
            }: CachePart<'_, U>,
            c: usize,
            scores: &mut [f32],
        ) {
            let n = keys.len() / c;
            let heads = queries.chunks(HEADS * c);
            for (queries, scores) in heads.zip(scores.chunks_mut(HEADS * PIECE)) {
                for first in (0..n).step_by(BLOCK) {
                    let block = Block {
                        queries: queries.as_ptr(),
                        keys: keys[first * c..].as_ptr(),
                        prefetch_from: match first + ROWS_AHEAD {
                            row if row < n => keys.as_ptr().wrapping_add(row * c),
                            row => next.wrapping_add((row - n) / BLOCK * BLOCK * c),
                        },
                        n: (n - first).min(BLOCK),
                        c: if C > 0 { C } else { c },
                    };
                    let to = &mut scores[first..];
                    // SAFETY: the keys and queries exist, and there is space for a block of scores.
                    unsafe {
                        match (queries.len() / c, block.n) {
                            (1, BLOCK) => block.write(to, block.$sums::<1, true>()),
                            (2, BLOCK) => block.write(to, block.$sums::<2, true>()),
                            (3, BLOCK) => block.write(to, block.$sums::<3, true>()),
                            (HEADS, BLOCK) => block.write(to, block.$sums::<HEADS, true>()),
                            (1, _) => block.write(to, block.$sums::<1, false>()),
                            (2, _) => block.write(to, block.$sums::<2, false>()),
                            (3, _) => block.write(to, block.$sums::<3, false>()),
                            _ => block.write(to, block.$sums::<HEADS, false>()),
                        }
                    }
                }
            }
        }
    };
}

scores_in_blocks!(
    scores_of_pairs,
    "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16",
    pair_sums
);
scores_in_blocks!(
    scores_of_numbers,
    "avx512f,avx512vl,avx512bw,avx512dq",
    sums
);

/// Queries of some heads, and up to [`BLOCK`] keys that they share.
struct Block<T, U> {
    queries: *const T,
    keys: *const U,
    /// Start of the rows to prefetch, a whole block of them.
    prefetch_from: *const U,
    /// Number of keys, at least one; missing keys of a block repeat the last one.
    n: usize,
    c: usize,
}

impl<T: Number, U: Number> Block<T, U> {
    /// Products of `R` queries with all keys.
    ///
    /// # Safety
    ///
    /// AVX-512; each query and key has `c` elements.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
    unsafe fn sums<const R: usize, const FULL: bool>(&self) -> [__m512; R] {
        let mut quarters = [[_mm512_setzero_ps(); BLOCK / QUAD]; R];
        for quad in 0..BLOCK / QUAD {
            let mut sums = [[_mm512_setzero_ps(); QUAD]; R];
            // In two halves, because prefetches issued together delay the loads after them.
            let prefetched = self.prefetch_from.wrapping_add(QUAD * quad * self.c);
            let half = QUAD * self.c / 2;
            prefetch(prefetched, half);
            for first in (0..self.c).step_by(16) {
                let mask = lanes(self.c - first);
                // SAFETY: lanes under the mask are within the rows.
                unsafe {
                    let keys: [__m512; QUAD] =
                        std::array::from_fn(|k| load(self.key::<FULL>(quad, k).add(first), mask));
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let query = load(self.queries.add(i * self.c + first), mask);
                        for (sum, &key) in sums.iter_mut().zip(&keys) {
                            *sum = _mm512_fmadd_ps(query, key, *sum);
                        }
                    }
                }
            }
            prefetch(prefetched.wrapping_add(half), half);
            for (quarters, sums) in quarters.iter_mut().zip(&sums) {
                quarters[quad] = quarter(sums);
            }
        }
        quarters.map(|quarters| reduce_quarters(&quarters))
    }

    /// Products of bf16 queries and keys, two per lane.
    ///
    /// # Safety
    ///
    /// AVX-512 with BF16; otherwise as for [`Self::sums`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16")]
    unsafe fn pair_sums<const R: usize, const FULL: bool>(&self) -> [__m512; R] {
        let mut quarters = [[_mm512_setzero_ps(); BLOCK / QUAD]; R];
        for quad in 0..BLOCK / QUAD {
            let mut sums = [[_mm512_setzero_ps(); QUAD]; R];
            prefetch(
                self.prefetch_from.wrapping_add(QUAD * quad * self.c),
                QUAD * self.c,
            );
            for first in (0..self.c).step_by(32) {
                let mask: __mmask32 = match self.c - first {
                    rest if rest < 32 => (1 << rest) - 1,
                    _ => !0,
                };
                // SAFETY: lanes under the mask are within the rows; every bit pattern is valid.
                unsafe {
                    let pairs = |from: *const i16| as_pairs(_mm512_maskz_loadu_epi16(mask, from));
                    let keys: [__m512bh; QUAD] =
                        std::array::from_fn(|k| pairs(self.key::<FULL>(quad, k).add(first).cast()));
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let query = pairs(self.queries.add(i * self.c + first).cast());
                        for (sum, &key) in sums.iter_mut().zip(&keys) {
                            *sum = _mm512_dpbf16_ps(*sum, query, key);
                        }
                    }
                }
            }
            for (quarters, sums) in quarters.iter_mut().zip(&sums) {
                quarters[quad] = quarter(sums);
            }
        }
        quarters.map(|quarters| reduce_quarters(&quarters))
    }

    /// Key `k` of the four keys of `quad`.
    #[inline(always)]
    fn key<const FULL: bool>(&self, quad: usize, k: usize) -> *const U {
        let row = QUAD * quad + k;
        let row = if FULL { row } else { row.min(self.n - 1) };
        self.keys.wrapping_add(row * self.c)
    }

    /// Writes each query's products to its row of scores, `PIECE` apart.
    ///
    /// # Safety
    ///
    /// AVX-512.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn write<const R: usize>(&self, to: &mut [f32], products: [__m512; R]) {
        for (i, products) in products.into_iter().enumerate() {
            let to = to[i * PIECE..][..BLOCK].as_mut_ptr();
            // SAFETY: there is space for a block.
            unsafe { _mm512_storeu_ps(to, products) };
        }
    }
}

/// Sums the lanes within each quarter of four vectors. Every quarter of the result has the sums of
/// the first, second, third and fourth vector.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarter(sums: &[__m512; QUAD]) -> __m512 {
    let half = |a: __m512, b: __m512| {
        _mm512_castps_pd(_mm512_add_ps(
            _mm512_unpacklo_ps(a, b),
            _mm512_unpackhi_ps(a, b),
        ))
    };
    let (a, b) = (half(sums[0], sums[1]), half(sums[2], sums[3]));
    let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
    _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
}

/// The sum of each of 16 vectors, in order, from the sums of their quarters.
#[inline]
#[target_feature(enable = "avx512f")]
fn reduce_quarters(quarters: &[__m512; BLOCK / QUAD]) -> __m512 {
    let joined = |a: __m512, b: __m512| {
        let (even, odd) = (
            _mm512_shuffle_f32x4::<0x88>(a, b),
            _mm512_shuffle_f32x4::<0xdd>(a, b),
        );
        _mm512_add_ps(even, odd)
    };
    joined(
        joined(quarters[0], quarters[1]),
        joined(quarters[2], quarters[3]),
    )
}

/// Weighted sums of `[n, c]` values, `[heads, c]`; rows of weights are `PIECE` apart. Prefetches
/// the same number of elements starting at `next`.
///
/// # Safety
///
/// AVX-512; `to` has a row of `c` for each head, and `weights` one of at least `n`.
pub(super) unsafe fn weighted_sums<U: Number>(
    part: CachePart<'_, U>,
    c: usize,
    weights: &[f32],
    to: &mut [f32],
) {
    let (n, heads) = (part.numbers.len() / c, to.len() / c);
    assert!(heads == 0 || weights.len() >= (heads - 1) * PIECE + n);
    weigh_in_blocks(part, c, weights, to, |n_heads, job| {
        // SAFETY: guaranteed by the caller; the job is within the slices.
        unsafe {
            match n_heads {
                1 => weigh_block::<U, 1>(job),
                2 => weigh_block::<U, 2>(job),
                3 => weigh_block::<U, 3>(job),
                _ => weigh_block::<U, HEADS>(job),
            }
        }
    });
}

/// Calls `weigh` for each block of heads and columns. The first argument is the number of remaining
/// heads, including this block.
fn weigh_in_blocks<U, W>(
    CachePart {
        numbers: values,
        next,
    }: CachePart<'_, U>,
    c: usize,
    weights: &[W],
    to: &mut [f32],
    weigh: impl Fn(usize, &Weighing<U, W>),
) {
    let heads = to.len() / c;
    for head in (0..heads).step_by(HEADS) {
        for first in (0..c).step_by(COLUMNS) {
            let job = Weighing {
                values: values.as_ptr().wrapping_add(first),
                next: next.wrapping_add(first),
                n: values.len() / c,
                c,
                columns: (c - first).min(COLUMNS),
                weights: weights.as_ptr().wrapping_add(head * PIECE),
                to: to.as_mut_ptr().wrapping_add(head * c + first),
            };
            weigh(heads - head, &job);
        }
    }
}

/// Prefetches `n` elements into the L2 cache; any address is allowed.
#[inline(always)]
fn prefetch<U>(from: *const U, n: usize) {
    for line in (0..n * size_of::<U>()).step_by(64) {
        // SAFETY: a prefetch is a hint and reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast::<i8>().wrapping_add(line)) };
    }
}

/// [`weighted_sums`] for bf16 values and weights: pairs of values are multiplied with pairs of
/// weights. A row with an odd number of weights is followed by a zero.
///
/// # Safety
///
/// Same as [`weighted_sums`], and [`has_pairs`] is true.
pub(super) unsafe fn weigh_pairs(
    part: CachePart<'_, bf16>,
    c: usize,
    weights: &[bf16],
    to: &mut [f32],
) {
    let (n, heads) = (part.numbers.len() / c, to.len() / c);
    let even = n.next_multiple_of(2);
    assert!(heads == 0 || weights.len() >= (heads - 1) * PIECE + even);
    weigh_in_blocks(part, c, weights, to, |n_heads, job| {
        // SAFETY: guaranteed by the caller; the job is within the slices.
        unsafe {
            match n_heads {
                1 => weigh_pair_block::<1>(job),
                2 => weigh_pair_block::<2>(job),
                3 => weigh_pair_block::<3>(job),
                _ => weigh_pair_block::<HEADS>(job),
            }
        }
    });
}

/// # Safety
///
/// AVX-512 with BF16; pointers valid for `R` heads.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16")]
unsafe fn weigh_pair_block<const R: usize>(job: &Weighing<bf16, bf16>) {
    const HALVES: usize = COLUMNS / 32;
    let masks: [__mmask32; HALVES] =
        std::array::from_fn(|v| match job.columns.saturating_sub(32 * v) {
            n if n >= 32 => !0,
            n => (1 << n) - 1,
        });
    let mut sums = [[_mm512_setzero_ps(); 2 * HALVES]; R];
    // SAFETY: guaranteed by the caller; lanes under the masks are within existing rows; every bit
    // pattern is valid.
    unsafe {
        for k in (0..job.n).step_by(2) {
            let row = job.values.add(k * job.c);
            for row_in_pair in [0, 1] {
                prefetch(job.prefetch_address(k + row_in_pair), job.columns);
            }
            let mut pairs = [_mm512_setzero_si512(); 2 * HALVES];
            for v in 0..HALVES {
                let upper = row.wrapping_add(32 * v).cast();
                let lower = row.wrapping_add(job.c + 32 * v).cast();
                let upper = _mm512_maskz_loadu_epi16(masks[v], upper);
                let exists = if k + 1 < job.n { masks[v] } else { 0 };
                let lower = _mm512_maskz_loadu_epi16(exists, lower);
                // Unpacking works within quarters: four columns of each quarter go to one vector,
                // four to the other.
                pairs[2 * v] = _mm512_unpacklo_epi16(upper, lower);
                pairs[2 * v + 1] = _mm512_unpackhi_epi16(upper, lower);
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let weight = job.weights.add(i * PIECE + k).cast::<i32>();
                let weight = _mm512_set1_epi32(weight.read_unaligned());
                for (sum, &pairs) in sums.iter_mut().zip(&pairs) {
                    *sum = _mm512_dpbf16_ps(*sum, as_pairs(weight), as_pairs(pairs));
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for (v, sums) in sums.as_chunks::<2>().0.iter().enumerate() {
                let to = job.to.wrapping_add(i * job.c + 32 * v);
                let n = job.columns.saturating_sub(32 * v);
                store(to, lanes(n), ordered_columns::<0>(sums));
                let to = to.wrapping_add(16);
                store(to, lanes(n.saturating_sub(16)), ordered_columns::<8>(sums));
            }
        }
    }
}

/// Sixteen columns in order, from alternating quarters of both vectors, starting at a lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn ordered_columns<const FROM: i32>([low, high]: &[__m512; 2]) -> __m512 {
    let quarter = |first: i32| [first, first + 1, first + 2, first + 3];
    let lanes = [FROM, 16 + FROM, FROM + 4, 20 + FROM].map(quarter);
    // SAFETY: both are 64 bytes, and every bit pattern is valid.
    let lanes = unsafe { std::mem::transmute::<[[i32; 4]; 4], __m512i>(lanes) };
    _mm512_permutex2var_ps(*low, lanes, *high)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn as_pairs(bits: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits, and every bit pattern is valid.
    unsafe { std::mem::transmute(bits) }
}

/// Some heads and columns.
struct Weighing<U, W> {
    values: *const U,
    /// Data to prefetch after the values, in rows of the same length.
    next: *const U,
    n: usize,
    c: usize,
    columns: usize,
    weights: *const W,
    to: *mut f32,
}

impl<U, W> Weighing<U, W> {
    /// Address to prefetch while row `row` is read.
    #[inline(always)]
    fn prefetch_address(&self, row: usize) -> *const U {
        match row + ROWS_AHEAD {
            row if row < self.n => self.values.wrapping_add(row * self.c),
            row => self.next.wrapping_add((row - self.n) * self.c),
        }
    }
}

/// # Safety
///
/// AVX-512; pointers valid for `R` heads.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
unsafe fn weigh_block<U: Number, const R: usize>(job: &Weighing<U, f32>) {
    let masks: [_; COLUMNS / 16] =
        std::array::from_fn(|v| lanes(job.columns.saturating_sub(16 * v)));
    let mut sums = [[_mm512_setzero_ps(); COLUMNS / 16]; R];
    // SAFETY: guaranteed by the caller; lanes under the masks are within the rows.
    unsafe {
        for k in 0..job.n {
            let row = job.values.add(k * job.c);
            prefetch(job.prefetch_address(k), job.columns);
            let line: [__m512; COLUMNS / 16] =
                std::array::from_fn(|v| load(row.wrapping_add(16 * v), masks[v]));
            for (i, sums) in sums.iter_mut().enumerate() {
                let weight = _mm512_set1_ps(*job.weights.add(i * PIECE + k));
                for (sum, &value) in sums.iter_mut().zip(&line) {
                    *sum = _mm512_fmadd_ps(weight, value, *sum);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                store(job.to.wrapping_add(i * job.c + 16 * v), masks[v], sum);
            }
        }
    }
}
