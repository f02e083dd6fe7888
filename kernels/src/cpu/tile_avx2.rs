//! The innermost product for CPUs with AVX2 and FMA: up to 6 rows × 16 columns in registers, or 2 ×
//! 32 for few rows, which would otherwise stall on their sums.

use std::arch::x86_64::{
    _mm256_add_ps, _mm256_broadcast_ss, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_setzero_ps,
    _mm256_storeu_ps,
};

use super::lanes_avx2::LANES;
use super::prefetch::prefetch_l2;
use super::tile::{Tile, TileJob};

/// Tiles with `V` registers per row.
#[derive(Debug)]
pub(crate) struct Avx2<const V: usize>;

/// Registers per half line of a panel.
const HALF: usize = 2;

impl<const V: usize> Tile for Avx2<V> {
    const ROWS: usize = if V > HALF { 2 } else { 6 };
    const COLUMNS: usize = LANES * V;

    unsafe fn run(job: &TileJob) {
        // SAFETY: the caller guarantees AVX2, FMA and valid pointers for the job's shape; each arm
        // passes the row count of the job.
        unsafe {
            match job.rows {
                1 => tile::<1, V, false>(job),
                2 => tile::<2, V, false>(job),
                // More rows would need more registers than there are.
                _ if V > HALF => unreachable!("at most two rows of whole panels"),
                3 => tile::<3, V, false>(job),
                4 => tile::<4, V, false>(job),
                5 => tile::<5, V, false>(job),
                // Compile-time strides save a third of the instructions.
                _ if (job.a_row_stride, job.a_depth_stride) == (1, 12) => tile::<6, V, true>(job),
                _ => tile::<6, V, false>(job),
            }
        }
    }
}

/// # Safety
///
/// AVX2 and FMA; `job` as [`TileJob`] requires, with `job.rows == MR`; A's rows are in a strip of
/// 12 if `STRIP`.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const MR: usize, const V: usize, const STRIP: bool>(job: &TileJob) {
    // SAFETY: A has `MR` rows of `depth` elements under its strides, B has `depth` lines. The
    // summands and C have the rows and columns of the job.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); V]; MR];
        let (mut a, mut b) = (job.a, job.b);
        let (row_stride, depth_stride) = if STRIP {
            (1, 12)
        } else {
            (job.a_row_stride, job.a_depth_stride)
        };
        let (mut next, next_step) = job.next;
        for _ in 0..job.depth {
            let mut line = [_mm256_setzero_ps(); V];
            for (v, line) in line.iter_mut().enumerate() {
                let half = b.add(v / HALF * job.b_half_stride);
                *line = _mm256_loadu_ps(half.add(v % HALF * LANES));
            }
            for half in 0..V / HALF {
                prefetch_l2(next.wrapping_add(half * size_of::<f32>() * job.b_half_stride));
            }
            next = next.wrapping_add(next_step);
            for (i, sum) in sums.iter_mut().enumerate() {
                let value = _mm256_broadcast_ss(&*a.add(i * row_stride));
                for (sum, &line) in sum.iter_mut().zip(&line) {
                    *sum = _mm256_fmadd_ps(value, line, *sum);
                }
            }
            a = a.wrapping_add(depth_stride);
            b = b.wrapping_add(job.b_line_stride);
        }
        if job.columns < LANES * V {
            for (i, sum) in sums.into_iter().enumerate() {
                let mut line = [[0.0f32; LANES]; V];
                for (line, value) in line.iter_mut().zip(sum) {
                    _mm256_storeu_ps(line.as_mut_ptr(), value);
                }
                job.finish(i, line.as_flattened_mut());
            }
            return;
        }
        // One branch for all rows: a branch per row would take as long as several depths.
        let added = [
            (job.sums, job.sums_row_stride),
            (job.bias, 0),
            (job.residual, job.residual_row_stride),
        ];
        for (first, stride) in added {
            if !first.is_null() {
                for (i, sum) in sums.iter_mut().enumerate() {
                    for (v, sum) in sum.iter_mut().enumerate() {
                        let numbers = _mm256_loadu_ps(first.add(i * stride + LANES * v));
                        *sum = _mm256_add_ps(numbers, *sum);
                    }
                }
            }
        }
        for (i, sum) in sums.into_iter().enumerate() {
            for (v, sum) in sum.into_iter().enumerate() {
                _mm256_storeu_ps(job.c.add(i * job.c_row_stride + LANES * v), sum);
            }
        }
    }
}
