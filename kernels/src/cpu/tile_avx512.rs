//! The innermost product for CPUs with AVX-512: up to 12 rows by 32 or 16 columns in registers.
//!
//! 24 of the 32 registers accumulate, two hold a line of B, and A is broadcast from memory; that
//! needs 14 loads for 24 multiply-adds, which the two load ports sustain.

use std::arch::x86_64::{
    __m512, __mmask16, _mm512_add_ps, _mm512_castpd_ps, _mm512_castps_pd, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_shuffle_f32x4, _mm512_storeu_ps, _mm512_unpackhi_pd,
    _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpacklo_ps,
};

use super::tile::{Tile, TileJob};

/// Tiles of `V` registers, 16 columns each: 2, or 1 where C has few columns.
#[derive(Debug)]
pub(crate) struct Avx512<const V: usize>;

impl<const V: usize> Tile for Avx512<V> {
    const ROWS: usize = 12;
    const COLUMNS: usize = 16 * V;

    unsafe fn run(job: &TileJob) {
        // SAFETY: the caller promises AVX-512F and valid pointers for `job`'s shape; each arm
        // passes the row count that the job states.
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
                // Strides that the compiler knows save a third of the instructions.
                _ if (job.a_row_stride, job.a_depth_stride) == (1, 12) => tile::<12, V, true>(job),
                _ => tile::<12, V, false>(job),
            }
        }
    }
}

/// Bits of the first `n` of 16 lanes.
pub(crate) fn lanes(n: usize) -> __mmask16 {
    if n >= 16 { !0 } else { (1 << n) - 1 }
}

/// # Safety
///
/// AVX-512F; `job` as [`TileJob`] demands, with `job.rows == MR`; A's rows lie
/// in a strip of 12 where `STRIP` says so.
#[target_feature(enable = "avx512f")]
unsafe fn tile<const MR: usize, const V: usize, const STRIP: bool>(job: &TileJob) {
    // SAFETY: A holds `MR` rows of `depth` elements under its strides, B `depth` lines. C's rows
    // are read and written under the mask of its columns alone.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); V]; MR];
        let (mut a, mut b) = (job.a, job.b);
        let (row_stride, depth_stride) = match STRIP {
            true => (1, 12),
            false => (job.a_row_stride, job.a_depth_stride),
        };
        for _ in 0..job.depth {
            let mut line = [_mm512_setzero_ps(); V];
            for (v, line) in line.iter_mut().enumerate() {
                *line = _mm512_loadu_ps(b.add(16 * v));
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
        for (i, sum) in sums.iter().enumerate() {
            let c = job.c.add(i * job.c_row_stride);
            if job.columns == 16 * V {
                for (v, &value) in sum.iter().enumerate() {
                    let c = c.add(16 * v);
                    let value = if job.adds {
                        _mm512_add_ps(_mm512_loadu_ps(c), value)
                    } else {
                        value
                    };
                    _mm512_storeu_ps(c, value);
                }
                continue;
            }
            for (v, &value) in sum.iter().enumerate() {
                let mask = lanes(job.columns.saturating_sub(16 * v));
                let c = c.wrapping_add(16 * v);
                let value = if job.adds {
                    _mm512_add_ps(_mm512_maskz_loadu_ps(mask, c), value)
                } else {
                    value
                };
                _mm512_mask_storeu_ps(c, mask, value);
            }
        }
    }
}

/// The columns of 16 rows.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn transposed_16(r: [__m512; 16]) -> [__m512; 16] {
    let mut columns = [_mm512_setzero_ps(); 16];
    // Within 128-bit lanes: register `s` of group `g` has element `4 * lane + s` of rows
    // `4 * g..4 * g + 4`.
    let [g0, g1, g2, g3] =
        [0, 4, 8, 12].map(|top| transpose_quads([r[top], r[top + 1], r[top + 2], r[top + 3]]));
    for (s, (((&q0, &q1), &q2), &q3)) in g0.iter().zip(&g1).zip(&g2).zip(&g3).enumerate() {
        // Lanes 0 and 2 to the even halves, 1 and 3 to the odd ones.
        let even01 = _mm512_shuffle_f32x4::<0x88>(q0, q1);
        let odd01 = _mm512_shuffle_f32x4::<0xdd>(q0, q1);
        let even23 = _mm512_shuffle_f32x4::<0x88>(q2, q3);
        let odd23 = _mm512_shuffle_f32x4::<0xdd>(q2, q3);
        columns[s] = _mm512_shuffle_f32x4::<0x88>(even01, even23);
        columns[4 + s] = _mm512_shuffle_f32x4::<0x88>(odd01, odd23);
        columns[8 + s] = _mm512_shuffle_f32x4::<0xdd>(even01, even23);
        columns[12 + s] = _mm512_shuffle_f32x4::<0xdd>(odd01, odd23);
    }
    columns
}

/// Transposes the 4x4 blocks that four registers hold in each 128-bit lane.
#[target_feature(enable = "avx512f")]
fn transpose_quads([r0, r1, r2, r3]: [__m512; 4]) -> [__m512; 4] {
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
