//! Innermost products for CPUs with AVX-512: up to 12 rows × 32 columns in registers.
//!
//! 24 of the 32 registers accumulate, two hold a line of B, and units of A are broadcast from
//! memory. This takes 14 loads per 24 multiplications, which the two load ports sustain.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_add_ps, _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setzero_ps,
};

use burn::tensor::bf16;

use super::cpu_softmax::ScoreBlock;
use super::cpu_softmax_avx512::{score_gradient_pairs, score_gradients};
use super::cpu_tile::{Arithmetic, Job, Onto, PANEL};
use crate::cpu::lanes_avx512::lanes;

/// f32.
#[derive(Debug)]
pub(super) struct Single;

/// Pairs of bf16, summed in f32.
#[derive(Debug)]
pub(super) struct Pairs;

/// Calls the tile function for the rows and the registers per row that a job needs.
macro_rules! with_shape {
    ($tile:ident, $job:expr) => {
        with_shape!($tile, $job, 1 2 3 4 5 6 7 8 9 10 11 12)
    };
    ($tile:ident, $job:expr, $($rows:literal)*) => {
        match ($job.rows, $job.columns > 16) {
            $(($rows, true) => $tile::<$rows, 2>($job),
            ($rows, false) => $tile::<$rows, 1>($job),)*
            (rows, _) => unreachable!("a tile has at most 12 rows, not {rows}"),
        }
    };
}

/// Implements [`Arithmetic`] with functions for the instruction set.
macro_rules! arithmetic {
    ($name:ident, $number:ty, $tile:ident, $score_gradients:ident) => {
        impl Arithmetic for $name {
            type Number = $number;
            const ROWS: usize = 12;

            unsafe fn tile(job: &Job) {
                // SAFETY: the caller guarantees the instruction set and valid pointers.
                unsafe { with_shape!($tile, job) }
            }

            unsafe fn score_gradients(block: ScoreBlock<'_, $number>) {
                // SAFETY: the caller guarantees the instruction set.
                unsafe {
                    $score_gradients(
                        block.scores,
                        block.gradients,
                        block.n,
                        block.scale,
                        block.rows,
                        block.to,
                    )
                }
            }
        }
    };
}

arithmetic!(Single, f32, single, score_gradients);
arithmetic!(Pairs, bf16, pairs, score_gradient_pairs);

/// # Safety
///
/// AVX-512F; the pointers of `job` are valid for its shape, `R` rows and at most `16 V` columns.
#[target_feature(enable = "avx512f")]
unsafe fn single<const R: usize, const V: usize>(job: &Job) {
    let (mut a, mut b) = (job.a.first, job.b);
    let mut sums = [[_mm512_setzero_ps(); V]; R];
    for _ in 0..job.depth {
        // SAFETY: a panel has 32 columns; A has `R` rows of `depth` units.
        unsafe {
            let line: [__m512; V] = std::array::from_fn(|v| _mm512_loadu_ps(b.add(16 * v)));
            for (i, sum) in sums.iter_mut().enumerate() {
                let unit = _mm512_set1_ps(*a.add(i * job.a.row_stride));
                for (sum, &line) in sum.iter_mut().zip(&line) {
                    *sum = _mm512_fmadd_ps(unit, line, *sum);
                }
            }
        }
        a = a.wrapping_add(job.a.depth_stride);
        b = b.wrapping_add(PANEL);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { store(&sums, job) }
}

/// # Safety
///
/// AVX-512F and AVX-512 BF16; otherwise as for [`single`].
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn pairs<const R: usize, const V: usize>(job: &Job) {
    let (mut a, mut b) = (job.a.first.cast::<i32>(), job.b);
    let mut sums = [[_mm512_setzero_ps(); V]; R];
    for _ in 0..job.depth {
        // SAFETY: a panel has 32 columns; A has `R` rows of `depth` units, which need not be
        // aligned. Vectors of pairs and of integers have the same bits.
        unsafe {
            let line: [__m512bh; V] =
                std::array::from_fn(|v| as_pairs(_mm512_loadu_si512(b.add(16 * v).cast())));
            for (i, sum) in sums.iter_mut().enumerate() {
                let unit = _mm512_set1_epi32(a.add(i * job.a.row_stride).read_unaligned());
                for (sum, &line) in sum.iter_mut().zip(&line) {
                    *sum = _mm512_dpbf16_ps(*sum, as_pairs(unit), line);
                }
            }
        }
        a = a.wrapping_add(job.a.depth_stride);
        b = b.wrapping_add(PANEL);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { store(&sums, job) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn as_pairs(bits: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits, and every bit pattern is valid.
    unsafe { std::mem::transmute(bits) }
}

/// # Safety
///
/// AVX-512F; the target of `job` has `R` rows of `columns` floats.
#[inline(always)]
unsafe fn store<const R: usize, const V: usize>(sums: &[[__m512; V]; R], job: &Job) {
    for (i, sum) in sums.iter().enumerate() {
        let c = job.c.first.wrapping_add(i * job.c.row_stride);
        for (v, &value) in sum.iter().enumerate() {
            let mask = lanes(job.columns - 16 * v);
            let c = c.wrapping_add(16 * v);
            // SAFETY: the row is accessed only under the mask of its columns.
            unsafe {
                let value = match job.c.onto {
                    Onto::Nothing => value,
                    Onto::Sums => _mm512_add_ps(_mm512_maskz_loadu_ps(mask, c), value),
                    Onto::Corrected(states) => {
                        let factor = _mm512_set1_ps((*states.add(i)).correction);
                        _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, c), factor, value)
                    }
                };
                _mm512_mask_storeu_ps(c, mask, value);
            }
        }
    }
}
