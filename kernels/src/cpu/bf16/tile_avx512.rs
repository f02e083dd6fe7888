//! Tiles for CPUs that multiply pairs of bf16: up to 12 rows by 32 columns in registers.
//!
//! 24 of the 32 registers accumulate, two hold a line of the panel, and A's pairs are broadcast
//! from memory: 14 loads for 24 multiplications, which the two load ports sustain.

use std::arch::x86_64::{
    __m256bh, __m256i, __m512, __m512bh, __m512i, __mmask16, _mm256_mask_storeu_epi16,
    _mm512_add_ps, _mm512_cvtneps_pbh, _mm512_dpbf16_ps, _mm512_loadu_si512, _mm512_mask_storeu_ps,
    _mm512_maskz_loadu_ps, _mm512_set1_epi32, _mm512_setzero_ps, _mm512_setzero_si512,
};
use std::mem::transmute;

use super::panels::COLUMNS;
use super::tile::{TileJob, TileOutput};

/// Whether this CPU has the instructions.
pub(crate) fn is_available() -> bool {
    is_x86_feature_detected!("avx512bf16")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
}

/// # Safety
///
/// As for [`super::tile::run`], and [`is_available`].
pub(crate) unsafe fn run(job: &TileJob<'_>) {
    // SAFETY: as the caller promises; each arm passes the row count that the job states.
    unsafe {
        if job.columns <= 16 {
            with_rows::<1>(job);
        } else {
            with_rows::<2>(job);
        }
    }
}

unsafe fn with_rows<const V: usize>(job: &TileJob<'_>) {
    // SAFETY: as the caller promises.
    unsafe {
        match job.rows {
            1 => tile::<1, V>(job),
            2 => tile::<2, V>(job),
            3 => tile::<3, V>(job),
            4 => tile::<4, V>(job),
            5 => tile::<5, V>(job),
            6 => tile::<6, V>(job),
            7 => tile::<7, V>(job),
            8 => tile::<8, V>(job),
            9 => tile::<9, V>(job),
            10 => tile::<10, V>(job),
            11 => tile::<11, V>(job),
            _ => tile::<12, V>(job),
        }
    }
}

/// A register as pairs of bf16.
#[inline(always)]
pub(super) fn pairs(x: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits of anything.
    unsafe { transmute::<__m512i, __m512bh>(x) }
}

/// Bits of the first `n` of 16 lanes.
pub(super) fn lanes(n: usize) -> __mmask16 {
    if n >= 16 { !0 } else { (1 << n) - 1 }
}

/// # Safety
///
/// As for [`super::tile::run`], with `job.rows == MR` and at most `16 * V` columns.
#[target_feature(enable = "avx512f,avx512bf16,avx512bw,avx512vl")]
unsafe fn tile<const MR: usize, const V: usize>(job: &TileJob<'_>) {
    let mut sums = [[_mm512_setzero_ps(); V]; MR];
    for term in job.terms {
        let mut b = term.b;
        let mut a = term.a;
        for _ in 0..term.pairs {
            let mut line = [_mm512_setzero_si512(); V];
            // SAFETY: the panel has a line for each pair, A's rows two elements.
            unsafe {
                for (v, line) in line.iter_mut().enumerate() {
                    *line = _mm512_loadu_si512(b.add(16 * v).cast());
                }
                for (i, sum) in sums.iter_mut().enumerate() {
                    let word = a.add(i * term.a_stride).cast::<i32>().read_unaligned();
                    let word = pairs(_mm512_set1_epi32(word));
                    for (sum, &line) in sum.iter_mut().zip(&line) {
                        *sum = _mm512_dpbf16_ps(*sum, word, pairs(line));
                    }
                }
            }
            b = b.wrapping_add(COLUMNS);
            a = a.wrapping_add(2);
        }
    }
    for (i, sum) in sums.into_iter().enumerate() {
        for (v, value) in sum.into_iter().enumerate() {
            // SAFETY: the masks keep every access within the job's columns.
            unsafe { finish(job, i, 16 * v, value) };
        }
    }
}

/// Adds what is to be added to 16 columns of a row and writes them.
///
/// # Safety
///
/// As for [`tile`].
#[target_feature(enable = "avx512f,avx512bf16,avx512bw,avx512vl")]
unsafe fn finish(job: &TileJob<'_>, row: usize, column: usize, mut value: __m512) {
    let mask = lanes(job.columns.saturating_sub(column));
    let at = row * job.output_stride + column;
    // SAFETY: lanes outside the mask are not touched.
    unsafe {
        if !job.bias.is_null() {
            let bias = _mm512_maskz_loadu_ps(mask, job.bias.wrapping_add(column));
            value = _mm512_add_ps(value, bias);
        }
        if !job.residual.is_null() {
            let residual = _mm512_maskz_loadu_ps(mask, job.residual.wrapping_add(at));
            value = _mm512_add_ps(value, residual);
        }
        match job.output {
            TileOutput::F32(to) => _mm512_mask_storeu_ps(to.wrapping_add(at), mask, value),
            TileOutput::Bf16(to) => {
                let narrow = transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(value));
                _mm256_mask_storeu_epi16(to.wrapping_add(at).cast(), mask, narrow);
            }
        }
    }
}
