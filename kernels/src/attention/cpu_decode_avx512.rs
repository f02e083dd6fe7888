//! The products of decoding on CPUs with AVX-512: the cache is read once for all query heads that
//! share it.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, __mmask32, _MM_HINT_T0, _mm_prefetch, _mm512_add_ps,
    _mm512_castpd_ps, _mm512_castps_pd, _mm512_dpbf16_ps, _mm512_fmadd_ps,
    _mm512_maskz_loadu_epi16, _mm512_permutex2var_ps, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_setzero_si512, _mm512_shuffle_f32x4, _mm512_storeu_ps,
    _mm512_unpackhi_epi16, _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_epi16,
    _mm512_unpacklo_pd, _mm512_unpacklo_ps,
};

use burn::tensor::{DType, bf16};

use crate::cpu::isa::has_pairs;
use crate::cpu::lanes_avx512::{lanes, load, store};
use crate::cpu::number::Number;

/// Keys that are multiplied side by side.
const BLOCK: usize = 16;

/// Rows of values from the one that is multiplied to the one that is asked for; twice as many of bf16,
/// which are half as long. Keys need no asking: they are read one behind the other.
const AHEAD: usize = 16;

/// Columns of values that are summed in registers.
const COLUMNS: usize = 64;

/// Products of `[heads, c]` queries with `[n, c]` keys: `[heads, stride]`, of which a multiple of
/// 16 columns is written, those beyond `n` with arbitrary values.
///
/// # Safety
///
/// AVX-512; `c` is not 0, and `stride` is a multiple of 16.
pub(super) unsafe fn scores<T: Number, U: Number>(
    queries: &[T],
    keys: &[U],
    c: usize,
    scores: (&mut [f32], usize),
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
            keys: &[U],
            c: usize,
            (scores, stride): (&mut [f32], usize),
        ) {
            let n = keys.len() / c;
            for first in (0..n).step_by(BLOCK) {
                let some = (n - first).min(BLOCK);
                let keys = &keys[first * c..(first + some) * c];
                let rows = queries.chunks_exact(c).zip(scores.chunks_exact_mut(stride));
                for (query, scores) in rows {
                    let (query, keys) = (query.as_ptr(), keys.as_ptr());
                    let to = &mut scores[first..first + BLOCK];
                    // SAFETY: there are `some` keys, and room for a block of scores.
                    unsafe {
                        let sums = if some == BLOCK {
                            $sums::<T, U, true, C>(query, keys, some, c)
                        } else {
                            $sums::<T, U, false, C>(query, keys, some, c)
                        };
                        _mm512_storeu_ps(to.as_mut_ptr(), sums);
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

/// Products of a query with `n` keys; without `FULL`, those that do not exist repeat the last.
///
/// # Safety
///
/// AVX-512; `c` numbers of a query and of each of `n` keys.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
unsafe fn sums<T: Number, U: Number, const FULL: bool, const C: usize>(
    query: *const T,
    keys: *const U,
    n: usize,
    c: usize,
) -> __m512 {
    let c = if C > 0 { C } else { c };
    let mut sums = [_mm512_setzero_ps(); BLOCK];
    for first in (0..c).step_by(16) {
        let mask = if C > 0 { !0 } else { lanes(c - first) };
        // SAFETY: lanes under the mask lie within the rows.
        unsafe {
            let query = load(query.add(first), mask);
            for (k, sum) in sums.iter_mut().enumerate() {
                let row = if FULL { k } else { k.min(n - 1) };
                *sum = _mm512_fmadd_ps(query, load(keys.add(row * c + first), mask), *sum);
            }
        }
    }
    folded(sums)
}

/// The same where both are bf16, two products a lane.
///
/// # Safety
///
/// AVX-512 with BF16; otherwise as for [`sums`].
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16")]
unsafe fn pair_sums<T: Number, U: Number, const FULL: bool, const C: usize>(
    query: *const T,
    keys: *const U,
    n: usize,
    c: usize,
) -> __m512 {
    let (query, keys) = (query.cast::<u16>(), keys.cast::<u16>());
    let c = if C > 0 { C } else { c };
    let mut sums = [_mm512_setzero_ps(); BLOCK];
    for first in (0..c).step_by(32) {
        let mask: __mmask32 = match c - first {
            rest if rest < 32 => (1 << rest) - 1,
            _ => !0,
        };
        // SAFETY: lanes under the mask lie within the rows; any bits are pairs.
        unsafe {
            let pairs = |from: *const u16| -> __m512bh {
                std::mem::transmute(_mm512_maskz_loadu_epi16(mask, from.cast()))
            };
            let query = pairs(query.add(first));
            for (k, sum) in sums.iter_mut().enumerate() {
                let row = if FULL { k } else { k.min(n - 1) };
                *sum = _mm512_dpbf16_ps(*sum, query, pairs(keys.add(row * c + first)));
            }
        }
    }
    folded(sums)
}

/// The sum of each vector, in their order.
#[inline]
#[target_feature(enable = "avx512f")]
fn folded(sums: [__m512; BLOCK]) -> __m512 {
    let halves: [__m512; 8] = std::array::from_fn(|i| {
        let (a, b) = (sums[2 * i], sums[2 * i + 1]);
        _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b))
    });
    // Each quarter of these holds sums of the same quarter of four vectors.
    let quarters: [__m512; 4] = std::array::from_fn(|i| {
        let (a, b) = (
            _mm512_castps_pd(halves[2 * i]),
            _mm512_castps_pd(halves[2 * i + 1]),
        );
        let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
        _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
    });
    let joined = |a: __m512, b: __m512| {
        let (even, odd) = (
            _mm512_shuffle_f32x4::<0x88>(a, b),
            _mm512_shuffle_f32x4::<0xdd>(a, b),
        );
        _mm512_add_ps(even, odd)
    };
    let (first, second) = (
        joined(quarters[0], quarters[1]),
        joined(quarters[2], quarters[3]),
    );
    joined(first, second)
}

/// Sums of `[n, c]` values weighed by rows of weights, `stride` apart: `[heads, c]`.
///
/// # Safety
///
/// AVX-512; `to` has a row of `c` for each head, and `weights` one of at least `n`.
pub(super) unsafe fn weigh<U: Number>(
    values: &[U],
    c: usize,
    (weights, stride): (&[f32], usize),
    to: &mut [f32],
) {
    let (n, heads) = (values.len() / c, to.len() / c);
    assert!(heads == 0 || weights.len() >= (heads - 1) * stride + n);
    for head in (0..heads).step_by(4) {
        for first in (0..c).step_by(COLUMNS) {
            let job = Weighing {
                values: values.as_ptr().wrapping_add(first),
                n,
                c,
                columns: (c - first).min(COLUMNS),
                weights: weights.as_ptr().wrapping_add(head * stride),
                stride,
                to: to.as_mut_ptr().wrapping_add(head * c + first),
            };
            // SAFETY: as the caller promises; the job lies within the slices.
            unsafe {
                match heads - head {
                    1 => weigh_block::<U, 1>(&job),
                    2 => weigh_block::<U, 2>(&job),
                    3 => weigh_block::<U, 3>(&job),
                    _ => weigh_block::<U, 4>(&job),
                }
            }
        }
    }
}

/// Asks for `n` numbers; any address may be asked for.
#[inline(always)]
fn prefetch<U>(from: *const U, n: usize) {
    for line in (0..n * size_of::<U>()).step_by(64) {
        // SAFETY: a hint, which reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast::<i8>().wrapping_add(line)) };
    }
}

/// [`weigh`] where values and weights are bf16: pairs of values are multiplied with pairs of
/// weights. Rows of weights have a zero behind an odd number of them.
///
/// # Safety
///
/// As for [`weigh`], and [`has_pairs`]; `stride` is even.
pub(super) unsafe fn weigh_pairs(
    values: &[bf16],
    c: usize,
    (weights, stride): (&[bf16], usize),
    to: &mut [f32],
) {
    let (n, heads) = (values.len() / c, to.len() / c);
    let even = n.next_multiple_of(2);
    assert!(heads == 0 || weights.len() >= (heads - 1) * stride + even);
    for head in (0..heads).step_by(4) {
        for first in (0..c).step_by(COLUMNS) {
            let job = Weighing {
                values: values.as_ptr().wrapping_add(first),
                n,
                c,
                columns: (c - first).min(COLUMNS),
                weights: weights.as_ptr().wrapping_add(head * stride),
                stride,
                to: to.as_mut_ptr().wrapping_add(head * c + first),
            };
            // SAFETY: as the caller promises; the job lies within the slices.
            unsafe {
                match heads - head {
                    1 => weigh_pair_block::<1>(&job),
                    2 => weigh_pair_block::<2>(&job),
                    3 => weigh_pair_block::<3>(&job),
                    _ => weigh_pair_block::<4>(&job),
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
            for asked in [2 * AHEAD, 2 * AHEAD + 1] {
                prefetch(row.wrapping_add(asked * job.c), job.columns);
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
                let weight = job.weights.add(i * job.stride + k).cast::<i32>();
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
    n: usize,
    c: usize,
    columns: usize,
    weights: *const W,
    stride: usize,
    to: *mut f32,
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
            prefetch(row.wrapping_add(AHEAD * job.c), job.columns);
            let line: [__m512; COLUMNS / 16] =
                std::array::from_fn(|v| load(row.wrapping_add(16 * v), masks[v]));
            for (i, sums) in sums.iter_mut().enumerate() {
                let weight = _mm512_set1_ps(*job.weights.add(i * job.stride + k));
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
