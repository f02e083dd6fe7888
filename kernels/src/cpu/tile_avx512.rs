//! The innermost product for CPUs with AVX-512: up to 12 rows × 32 or 16 columns in registers.
//!
//! 24 of the 32 registers accumulate, two hold a line of B, and A is broadcast from memory: 14
//! loads per 24 multiply-adds, which the two load ports sustain. Lines to be read or written are
//! prefetched; without this a tenth of the time is spent waiting.

use std::arch::x86_64::{
    __m512, _MM_HINT_ET0, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch, _mm512_add_ps, _mm512_castpd_ps,
    _mm512_castps_pd, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_storeu_ps,
    _mm512_maskz_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_shuffle_f32x4,
    _mm512_storeu_ps, _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_pd,
    _mm512_unpacklo_ps,
};

use super::lanes_avx512::lanes;
use super::tile::{Tile, TileJob};

/// Tiles with `V` registers of 16 columns: 2, or 1 if C has few columns.
#[derive(Debug)]
pub(crate) struct Avx512<const V: usize>;

impl<const V: usize> Tile for Avx512<V> {
    const ROWS: usize = 12;
    const COLUMNS: usize = 16 * V;

    unsafe fn run(job: &TileJob) {
        // SAFETY: the caller guarantees AVX-512F and valid pointers for the job's shape; each arm
        // passes the row count of the job.
        unsafe {
            match job.rows {
                1 => tile::<1, V, false>(job),
                2 => tile::<2, V, false>(job),
                3 => tile::<3, V, false>(job),
                4 => tile::<4, V, false>(job),
                5 => tile::<5, V, false>(job),
                6 => tile::<6, V, false>(job),
                7 => tile::<7, V, false>(job),
                8 => tile::<8, V, false>(job),
                9 => tile::<9, V, false>(job),
                10 => tile::<10, V, false>(job),
                11 => tile::<11, V, false>(job),
                // Compile-time strides save a third of the instructions.
                _ if (job.a_row_stride, job.a_depth_stride) == (1, 12) => tile::<12, V, true>(job),
                _ => tile::<12, V, false>(job),
            }
        }
    }
}

/// L2 prefetch distance in panel lines. Panel lines are not prefetched into L1, because the hardware
/// does that faster itself: decoding from memory then takes as little as 0.93 of the time on a Zen
/// 5. Distances outside 32 to 64 lines are also slower.
pub(crate) const LINES_AHEAD: usize = 48;
/// L1 prefetch distance in words of a strip.
pub(crate) const STRIP_AHEAD: usize = 192;

/// Depths before the end of a tile at which its output lines are prefetched.
const DEPTHS_TO_WRITE: usize = 32;

/// Prefetches `N` cache lines for reading.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn prefetch_l1<const N: usize>(first: *const f32) {
    for n in 0..N {
        _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(16 * n).cast());
    }
}

/// Prefetches `N` cache lines into the L2 cache, for reading later.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn prefetch_l2<const N: usize>(first: *const f32) {
    for n in 0..N {
        _mm_prefetch::<_MM_HINT_T1>(first.wrapping_add(16 * n).cast());
    }
}

/// Prefetches `N` cache lines for writing.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn ask_to_write<const N: usize>(first: *const f32) {
    for n in 0..N {
        _mm_prefetch::<_MM_HINT_ET0>(first.wrapping_add(16 * n).cast());
    }
}

/// # Safety
///
/// AVX-512F; `job` as [`TileJob`] requires, with `job.rows == MR`; A's rows are in a strip of 12 if
/// `STRIP`.
#[target_feature(enable = "avx512f")]
unsafe fn tile<const MR: usize, const V: usize, const STRIP: bool>(job: &TileJob) {
    // SAFETY: A has `MR` rows of `depth` elements under its strides, B has `depth` lines. The
    // summands and C have the rows and columns of the job.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); V]; MR];
        let (mut a, mut b) = (job.a, job.b);
        let (row_stride, depth_stride) = if STRIP {
            (1, 12)
        } else {
            (job.a_row_stride, job.a_depth_stride)
        };
        // C's lines are prefetched shortly before they are written: lines prefetched at the start
        // of a deep tile would be evicted from L1 by the tile's inputs.
        let late = job.depth.min(DEPTHS_TO_WRITE);
        for (depths, is_last) in [(job.depth - late, false), (late, true)] {
            for _ in 0..depths {
                let mut line = [_mm512_setzero_ps(); V];
                for (v, line) in line.iter_mut().enumerate() {
                    *line = _mm512_loadu_ps(b.add(16 * v));
                }
                prefetch_l2::<V>(b.wrapping_add(LINES_AHEAD * job.b_line_stride));
                if STRIP {
                    prefetch_l1::<1>(a.wrapping_add(STRIP_AHEAD));
                }
                for (i, sum) in sums.iter_mut().enumerate() {
                    let value = _mm512_set1_ps(*a.add(i * row_stride));
                    for (sum, &line) in sum.iter_mut().zip(&line) {
                        *sum = _mm512_fmadd_ps(value, line, *sum);
                    }
                }
                a = a.wrapping_add(depth_stride);
                b = b.wrapping_add(job.b_line_stride);
            }
            if job.c_is_far && !is_last {
                for i in 0..MR {
                    ask_to_write::<V>(job.c.wrapping_add(i * job.c_row_stride).cast());
                }
            }
        }
        if job.sums.is_null() && job.bias.is_null() && job.residual.is_null() {
            for (i, sum) in sums.iter().enumerate() {
                for (v, &value) in sum.iter().enumerate() {
                    store(job, i, 16 * v, value);
                }
            }
        } else {
            // A copy: sums whose address is taken would not stay in registers.
            let sums = sums;
            finish(job, &sums);
        }
    }
}

/// Stores up to 16 columns of a row, starting at `column`; columns that the job does not have are
/// skipped.
///
/// # Safety
///
/// Same as for [`tile`].
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn store(job: &TileJob, row: usize, column: usize, value: __m512) {
    let mask = lanes(job.columns.saturating_sub(column));
    let to = job.c.wrapping_add(row * job.c_row_stride + column);
    // SAFETY: lanes outside the mask are not accessed.
    unsafe { _mm512_mask_storeu_ps(to, mask, value) };
}

/// Adds bias and residual to the rows of a tile and stores them.
///
/// # Safety
///
/// Same as for [`tile`].
#[target_feature(enable = "avx512f")]
#[inline(never)]
unsafe fn finish<const V: usize>(job: &TileJob, sums: &[[__m512; V]]) {
    for (row, sum) in sums.iter().enumerate() {
        for (v, &value) in sum.iter().enumerate() {
            let (column, mut value) = (16 * v, value);
            let mask = lanes(job.columns.saturating_sub(column));
            let element =
                |first: *const f32, stride: usize| first.wrapping_add(row * stride + column);
            // SAFETY: lanes outside the mask are not accessed.
            unsafe {
                if !job.sums.is_null() {
                    let sums = _mm512_maskz_loadu_ps(mask, element(job.sums, job.sums_row_stride));
                    value = _mm512_add_ps(sums, value);
                }
                if !job.bias.is_null() {
                    value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, element(job.bias, 0)));
                }
                if !job.residual.is_null() {
                    let residual = element(job.residual, job.residual_row_stride);
                    value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, residual));
                }
                store(job, row, column, value);
            }
        }
    }
}

/// Transposes rows of floats in groups of 16. Returns the number of rows processed, and leaves the
/// rest.
///
/// # Safety
///
/// AVX-512F; every row has all columns, and each column has an output row with space for the rows.
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn transpose(
    from: *const f32,
    stride: usize,
    [rows, columns]: [usize; 2],
    to: *mut f32,
    to_stride: usize,
) -> usize {
    let rows = rows / 16 * 16;
    for row in (0..rows).step_by(16) {
        for column in (0..columns).step_by(16) {
            let some = (columns - column).min(16);
            let mut block = [_mm512_setzero_ps(); 16];
            for (i, numbers) in block.iter_mut().enumerate() {
                let from = from.wrapping_add((row + i) * stride + column);
                // SAFETY: lanes under the mask are columns of the row.
                *numbers = unsafe { _mm512_maskz_loadu_ps(lanes(some), from) };
            }
            let transposed_block = transposed_16(block);
            for (i, numbers) in transposed_block.into_iter().take(some).enumerate() {
                let to = to.wrapping_add((column + i) * to_stride + row);
                // SAFETY: the column's row has space for 16 rows at this offset.
                unsafe { _mm512_storeu_ps(to, numbers) };
            }
        }
    }
    rows
}

/// Transposes 16 rows.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn transposed_16(r: [__m512; 16]) -> [__m512; 16] {
    let mut columns = [_mm512_setzero_ps(); 16];
    // Within 128-bit lanes: register `s` of group `g` has element `4 * lane + s` of rows `4 * g..4
    // * g + 4`. Groups are written out: a closure would not be inlined and would spill registers to
    // memory.
    let g0 = transpose_quads([r[0], r[1], r[2], r[3]]);
    let g1 = transpose_quads([r[4], r[5], r[6], r[7]]);
    let g2 = transpose_quads([r[8], r[9], r[10], r[11]]);
    let g3 = transpose_quads([r[12], r[13], r[14], r[15]]);
    for s in 0..4 {
        let lanes = transpose_lanes([g0[s], g1[s], g2[s], g3[s]]);
        columns[s] = lanes[0];
        columns[4 + s] = lanes[1];
        columns[8 + s] = lanes[2];
        columns[12 + s] = lanes[3];
    }
    columns
}

/// Transposes the 128-bit lanes of four registers.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn transpose_lanes([r0, r1, r2, r3]: [__m512; 4]) -> [__m512; 4] {
    // Lanes 0 and 2 to the even halves, 1 and 3 to the odd ones.
    let even01 = _mm512_shuffle_f32x4::<0x88>(r0, r1);
    let odd01 = _mm512_shuffle_f32x4::<0xdd>(r0, r1);
    let even23 = _mm512_shuffle_f32x4::<0x88>(r2, r3);
    let odd23 = _mm512_shuffle_f32x4::<0xdd>(r2, r3);
    [
        _mm512_shuffle_f32x4::<0x88>(even01, even23),
        _mm512_shuffle_f32x4::<0x88>(odd01, odd23),
        _mm512_shuffle_f32x4::<0xdd>(even01, even23),
        _mm512_shuffle_f32x4::<0xdd>(odd01, odd23),
    ]
}

/// Transposes the 4 × 4 blocks in each 128-bit lane of four registers.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn transpose_quads([r0, r1, r2, r3]: [__m512; 4]) -> [__m512; 4] {
    let low01 = _mm512_castps_pd(_mm512_unpacklo_ps(r0, r1));
    let high01 = _mm512_castps_pd(_mm512_unpackhi_ps(r0, r1));
    let low23 = _mm512_castps_pd(_mm512_unpacklo_ps(r2, r3));
    let high23 = _mm512_castps_pd(_mm512_unpackhi_ps(r2, r3));
    [
        _mm512_castpd_ps(_mm512_unpacklo_pd(low01, low23)),
        _mm512_castpd_ps(_mm512_unpackhi_pd(low01, low23)),
        _mm512_castpd_ps(_mm512_unpacklo_pd(high01, high23)),
        _mm512_castpd_ps(_mm512_unpackhi_pd(high01, high23)),
    ]
}
