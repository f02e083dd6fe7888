//! The products of decoding on CPUs with AVX-512: the cache is read once for all query heads that
//! share it.

use std::arch::x86_64::{
    __m512, __m512bh, __mmask32, _MM_HINT_T0, _mm_prefetch, _mm512_add_ps, _mm512_castpd_ps,
    _mm512_castps_pd, _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_maskz_loadu_epi16, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_shuffle_f32x4, _mm512_storeu_ps, _mm512_unpackhi_pd,
    _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpacklo_ps,
};

use burn::tensor::DType;

use crate::cpu::isa::has_pairs;
use crate::cpu::lanes_avx512::{lanes, load, store};
use crate::cpu::number::Number;

/// Keys that are multiplied side by side.
const BLOCK: usize = 16;

/// Keys that are on their way from memory while others are multiplied.
const AHEAD: usize = 2 * BLOCK;

/// Columns of values that are summed in registers.
const COLUMNS: usize = 64;

/// Products of `[heads, c]` queries with `[n, c]` keys: `[heads, stride]`, of which a multiple of
/// 16 columns is written, those beyond `n` with arbitrary values. The values of these keys are
/// brought nearer meanwhile.
///
/// # Safety
///
/// AVX-512; `n` and `c` are not 0, and `stride` is a multiple of 16.
pub(super) unsafe fn scores<T: Number, U: Number>(
    queries: &[T],
    (keys, values): (&[U], *const U),
    c: usize,
    (scores, stride): (&mut [f32], usize),
) {
    let n = keys.len() / c;
    let pairs = T::DTYPE == DType::BF16 && U::DTYPE == DType::BF16 && has_pairs();
    for first in (0..n).step_by(BLOCK) {
        let some = (n - first).min(BLOCK);
        prefetch(keys.as_ptr().wrapping_add((first + AHEAD) * c), BLOCK * c);
        prefetch(values.wrapping_add(first * c), BLOCK * c);
        let keys = &keys[first * c..(first + some) * c];
        for (query, scores) in queries.chunks_exact(c).zip(scores.chunks_exact_mut(stride)) {
            let (query, keys) = (query.as_ptr(), keys.as_ptr());
            let to = &mut scores[first..first + BLOCK];
            // SAFETY: the caller promises the instruction set; there are `some` keys, and room for
            // a block of scores.
            unsafe {
                let sums = match (pairs, some == BLOCK) {
                    (true, true) => pair_sums::<true>(query.cast(), keys.cast(), some, c),
                    (true, false) => pair_sums::<false>(query.cast(), keys.cast(), some, c),
                    (false, true) => sums::<T, U, true>(query, keys, some, c),
                    (false, false) => sums::<T, U, false>(query, keys, some, c),
                };
                write(to, sums);
            }
        }
    }
}

/// Asks for `n` numbers; any address may be asked for.
fn prefetch<U>(from: *const U, n: usize) {
    for line in (0..n * size_of::<U>()).step_by(64) {
        // SAFETY: a hint, which reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast::<i8>().wrapping_add(line)) };
    }
}

/// # Safety
///
/// AVX-512; room for a block.
#[target_feature(enable = "avx512f")]
unsafe fn write(to: &mut [f32], values: __m512) {
    // SAFETY: as the caller promises.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), values) }
}

/// Products of a query with `n` keys; without `FULL`, those that do not exist repeat the last.
///
/// # Safety
///
/// AVX-512; `c` numbers of a query and of each of `n` keys.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
unsafe fn sums<T: Number, U: Number, const FULL: bool>(
    query: *const T,
    keys: *const U,
    n: usize,
    c: usize,
) -> __m512 {
    let mut sums = [_mm512_setzero_ps(); BLOCK];
    for first in (0..c).step_by(16) {
        let mask = lanes(c - first);
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

/// The same for bf16, two products a lane.
///
/// # Safety
///
/// AVX-512 with BF16; otherwise as for [`sums`].
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16")]
unsafe fn pair_sums<const FULL: bool>(
    query: *const u16,
    keys: *const u16,
    n: usize,
    c: usize,
) -> __m512 {
    let mut sums = [_mm512_setzero_ps(); BLOCK];
    for first in (0..c).step_by(32) {
        let rest = c - first;
        let mask: __mmask32 = if rest >= 32 { !0 } else { (1 << rest) - 1 };
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

/// Some heads and columns.
struct Weighing<U> {
    values: *const U,
    n: usize,
    c: usize,
    columns: usize,
    weights: *const f32,
    stride: usize,
    to: *mut f32,
}

/// # Safety
///
/// AVX-512; pointers valid for `R` heads.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
unsafe fn weigh_block<U: Number, const R: usize>(job: &Weighing<U>) {
    let masks: [_; COLUMNS / 16] =
        std::array::from_fn(|v| lanes(job.columns.saturating_sub(16 * v)));
    let mut sums = [[_mm512_setzero_ps(); COLUMNS / 16]; R];
    // SAFETY: as the caller promises; lanes under the masks lie within the rows.
    unsafe {
        for k in 0..job.n {
            let row = job.values.add(k * job.c);
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
