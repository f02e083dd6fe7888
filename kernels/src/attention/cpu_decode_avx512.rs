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

/// Keys that are multiplied side by side.
const BLOCK: usize = 16;

/// Of these, keys whose sums are kept in registers for all heads.
const QUAD: usize = 4;

/// Heads that are multiplied with a key, or weigh a value, while it is in a register.
const HEADS: usize = 4;

/// Rows of keys or values from the one that is read to the one that is asked for, a multiple of
/// [`BLOCK`].
///
/// A cache comes from memory: between two uses of it a token reads all weights. Products therefore ask
/// the second level for what they read soon, behind the end of a piece for what comes after it. They
/// ask for nothing else: a core can wait for two dozen lines at a time, and those asked for from the
/// second level to the first keep others from coming.
const ROWS_AHEAD: usize = 48;

/// Columns of values that are summed in registers.
const COLUMNS: usize = 64;

/// Products of `[heads, c]` queries with `[n, c]` keys: `[heads, PIECE]`, of which a multiple of
/// 16 columns is written, those beyond `n` with arbitrary values. As many numbers from `next` on will
/// be read soon.
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
    // SAFETY: as the caller promises; the instructions for bf16 are detected.
    unsafe {
        match (pairs, c) {
            (true, 64) => scores_of_pairs::<T, U, 64>(queries, keys, c, scores),
            (true, _) => scores_of_pairs::<T, U, 0>(queries, keys, c, scores),
            (false, 64) => scores_of_numbers::<T, U, 64>(queries, keys, c, scores),
            (false, _) => scores_of_numbers::<T, U, 0>(queries, keys, c, scores),
        }
    }
}

/// A function for [`scores`] with the given features and products.
macro_rules! scores_in_blocks {
    ($name:ident, $features:literal, $sums:ident) => {
        /// # Safety
        ///
        /// The features; `C` is 0 or `c`, which is then a multiple of 32; otherwise as for
        /// [`scores`].
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
                        asked: match first + ROWS_AHEAD {
                            row if row < n => keys.as_ptr().wrapping_add(row * c),
                            row => next.wrapping_add((row - n) / BLOCK * BLOCK * c),
                        },
                        n: (n - first).min(BLOCK),
                        c: if C > 0 { C } else { c },
                    };
                    let to = &mut scores[first..];
                    // SAFETY: there are as many keys and queries, and room for a block of scores.
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
    /// As many rows, which are asked for meanwhile.
    asked: *const U,
    /// At least one key; those that do not exist repeat the last.
    n: usize,
    c: usize,
}

impl<T: Number, U: Number> Block<T, U> {
    /// Products of `R` queries with all keys.
    ///
    /// # Safety
    ///
    /// AVX-512; `c` numbers of each query and key.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
    unsafe fn sums<const R: usize, const FULL: bool>(&self) -> [__m512; R] {
        let mut quarters = [[_mm512_setzero_ps(); BLOCK / QUAD]; R];
        for quad in 0..BLOCK / QUAD {
            let mut sums = [[_mm512_setzero_ps(); QUAD]; R];
            // In two halves: what is asked for at once holds up the loads behind it.
            let asked = self.asked.wrapping_add(QUAD * quad * self.c);
            let half = QUAD * self.c / 2;
            prefetch(asked, half);
            for first in (0..self.c).step_by(16) {
                let mask = lanes(self.c - first);
                // SAFETY: lanes under the mask lie within the rows.
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
            prefetch(asked.wrapping_add(half), half);
            for (quarters, sums) in quarters.iter_mut().zip(&sums) {
                quarters[quad] = quarter(sums);
            }
        }
        quarters.map(|quarters| whole(&quarters))
    }

    /// The same where both are bf16, two products a lane.
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
            prefetch(self.asked.wrapping_add(QUAD * quad * self.c), QUAD * self.c);
            for first in (0..self.c).step_by(32) {
                let mask: __mmask32 = match self.c - first {
                    rest if rest < 32 => (1 << rest) - 1,
                    _ => !0,
                };
                // SAFETY: lanes under the mask lie within the rows; any bits are pairs.
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
        quarters.map(|quarters| whole(&quarters))
    }

    /// Key `k` of four.
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
            // SAFETY: room for a block.
            unsafe { _mm512_storeu_ps(to, products) };
        }
    }
}

/// Sums of each quarter of four vectors: the first one's, the second one's, … in each quarter.
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

/// The sum of each of 16 vectors, in their order, from those of their quarters.
#[inline]
#[target_feature(enable = "avx512f")]
fn whole(quarters: &[__m512; BLOCK / QUAD]) -> __m512 {
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

/// Sums of `[n, c]` values weighed by rows of weights, `PIECE` apart: `[heads, c]`. As many numbers
/// from `next` on will be read soon.
///
/// # Safety
///
/// AVX-512; `to` has a row of `c` for each head, and `weights` one of at least `n`.
pub(super) unsafe fn weigh<U: Number>(
    CachePart {
        numbers: values,
        next,
    }: CachePart<'_, U>,
    c: usize,
    weights: &[f32],
    to: &mut [f32],
) {
    let (n, heads) = (values.len() / c, to.len() / c);
    assert!(heads == 0 || weights.len() >= (heads - 1) * PIECE + n);
    for head in (0..heads).step_by(HEADS) {
        for first in (0..c).step_by(COLUMNS) {
            let job = Weighing {
                values: values.as_ptr().wrapping_add(first),
                next: next.wrapping_add(first),
                n,
                c,
                columns: (c - first).min(COLUMNS),
                weights: weights.as_ptr().wrapping_add(head * PIECE),
                to: to.as_mut_ptr().wrapping_add(head * c + first),
            };
            // SAFETY: as the caller promises; the job lies within the slices.
            unsafe {
                match heads - head {
                    1 => weigh_block::<U, 1>(&job),
                    2 => weigh_block::<U, 2>(&job),
                    3 => weigh_block::<U, 3>(&job),
                    _ => weigh_block::<U, HEADS>(&job),
                }
            }
        }
    }
}

/// Asks for `n` numbers, into the second level; any address may be asked for.
#[inline(always)]
fn prefetch<U>(from: *const U, n: usize) {
    for line in (0..n * size_of::<U>()).step_by(64) {
        // SAFETY: a hint, which reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast::<i8>().wrapping_add(line)) };
    }
}

/// [`weigh`] where values and weights are bf16: pairs of values are multiplied with pairs of
/// weights. Rows of weights have a zero behind an odd number of them.
///
/// # Safety
///
/// As for [`weigh`], and [`has_pairs`].
pub(super) unsafe fn weigh_pairs(
    CachePart {
        numbers: values,
        next,
    }: CachePart<'_, bf16>,
    c: usize,
    weights: &[bf16],
    to: &mut [f32],
) {
    let (n, heads) = (values.len() / c, to.len() / c);
    let even = n.next_multiple_of(2);
    assert!(heads == 0 || weights.len() >= (heads - 1) * PIECE + even);
    for head in (0..heads).step_by(HEADS) {
        for first in (0..c).step_by(COLUMNS) {
            let job = Weighing {
                values: values.as_ptr().wrapping_add(first),
                next: next.wrapping_add(first),
                n,
                c,
                columns: (c - first).min(COLUMNS),
                weights: weights.as_ptr().wrapping_add(head * PIECE),
                to: to.as_mut_ptr().wrapping_add(head * c + first),
            };
            // SAFETY: as the caller promises; the job lies within the slices.
            unsafe {
                match heads - head {
                    1 => weigh_pair_block::<1>(&job),
                    2 => weigh_pair_block::<2>(&job),
                    3 => weigh_pair_block::<3>(&job),
                    _ => weigh_pair_block::<HEADS>(&job),
                }
            }
        }
    }
}

/// # Safety
///
/// AVX-512 with BF16; pointers valid for `R` heads.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16")]
unsafe fn weigh_pair_block<const R: usize>(job: &Weighing<bf16, bf16>) {
    const HALVES: usize = COLUMNS / 32;
    let masks: [__mmask32; HALVES] =
        std::array::from_fn(|v| match job.columns.saturating_sub(32 * v) {
            rest if rest >= 32 => !0,
            rest => (1 << rest) - 1,
        });
    let mut sums = [[_mm512_setzero_ps(); 2 * HALVES]; R];
    // SAFETY: as the caller promises; lanes under the masks lie within rows that exist; any bits
    // are pairs.
    unsafe {
        for k in (0..job.n).step_by(2) {
            let row = job.values.add(k * job.c);
            for asked in [0, 1] {
                prefetch(job.asked(k + asked), job.columns);
            }
            let mut pairs = [_mm512_setzero_si512(); 2 * HALVES];
            for v in 0..HALVES {
                let upper = row.wrapping_add(32 * v).cast();
                let lower = row.wrapping_add(job.c + 32 * v).cast();
                let upper = _mm512_maskz_loadu_epi16(masks[v], upper);
                let exists = if k + 1 < job.n { masks[v] } else { 0 };
                let lower = _mm512_maskz_loadu_epi16(exists, lower);
                // Quarters keep their place: four columns of each go to either vector.
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
                let rest = job.columns.saturating_sub(32 * v);
                store(to, lanes(rest), in_order::<0>(sums));
                let to = to.wrapping_add(16);
                store(to, lanes(rest.saturating_sub(16)), in_order::<8>(sums));
            }
        }
    }
}

/// Sixteen columns in their order, from quarters of both vectors in turn that start at a lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn in_order<const FROM: i32>([low, high]: &[__m512; 2]) -> __m512 {
    let quarter = |first: i32| [first, first + 1, first + 2, first + 3];
    let lanes = [FROM, 16 + FROM, FROM + 4, 20 + FROM].map(quarter);
    // SAFETY: both are 64 bytes, of which any bits are valid.
    let lanes = unsafe { std::mem::transmute::<[[i32; 4]; 4], __m512i>(lanes) };
    _mm512_permutex2var_ps(*low, lanes, *high)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn as_pairs(bits: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits, of which any are valid.
    unsafe { std::mem::transmute(bits) }
}

/// Some heads and columns.
struct Weighing<U, W> {
    values: *const U,
    /// What will be read after the values, in rows as long.
    next: *const U,
    n: usize,
    c: usize,
    columns: usize,
    weights: *const W,
    to: *mut f32,
}

impl<U, W> Weighing<U, W> {
    /// What is asked for when row `row` is read.
    #[inline(always)]
    fn asked(&self, row: usize) -> *const U {
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
    // SAFETY: as the caller promises; lanes under the masks lie within the rows.
    unsafe {
        for k in 0..job.n {
            let row = job.values.add(k * job.c);
            prefetch(job.asked(k), job.columns);
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
