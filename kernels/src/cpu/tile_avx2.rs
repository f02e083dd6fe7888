//! The innermost product for CPUs with AVX2 and FMA: up to 6 rows by 16 columns in registers.

use std::arch::x86_64::{
    _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps,
};

use super::tile::{Tile, TileJob};

const COLUMNS: usize = 16;

/// AVX2 tiles.
#[derive(Debug)]
pub(crate) struct Avx2;

impl Tile for Avx2 {
    const ROWS: usize = 6;
    const COLUMNS: usize = COLUMNS;

    unsafe fn run(job: &TileJob) {
        // SAFETY: the caller promises AVX2, FMA and valid pointers for `job`'s shape; each arm
        // passes the row count that the job states.
        unsafe {
            match job.rows {
                1 => tile::<1>(job),
                2 => tile::<2>(job),
                3 => tile::<3>(job),
                4 => tile::<4>(job),
                5 => tile::<5>(job),
                _ => tile::<6>(job),
            }
        }
    }
}

/// # Safety
///
/// AVX2 and FMA; `job` as [`TileJob`] demands, with `job.rows == MR`.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const MR: usize>(job: &TileJob) {
    // SAFETY: A holds `MR` rows of `depth` elements under its strides, B `depth` lines of 16. What
    // is added and C have the rows and columns of the job.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); 2]; MR];
        let (mut a, mut b) = (job.a, job.b);
        for _ in 0..job.depth {
            let low = _mm256_loadu_ps(b);
            let high = _mm256_loadu_ps(b.add(8));
            for (i, sum) in sums.iter_mut().enumerate() {
                let value = _mm256_set1_ps(*a.add(i * job.a_row_stride));
                sum[0] = _mm256_fmadd_ps(value, low, sum[0]);
                sum[1] = _mm256_fmadd_ps(value, high, sum[1]);
            }
            a = a.wrapping_add(job.a_depth_stride);
            b = b.wrapping_add(job.b_line_stride);
        }
        for (i, sum) in sums.iter().enumerate() {
            let mut line = [0.0f32; COLUMNS];
            _mm256_storeu_ps(line.as_mut_ptr(), sum[0]);
            _mm256_storeu_ps(line.as_mut_ptr().add(8), sum[1]);
            // A number of columns that the compiler knows becomes whole registers.
            match job.columns {
                COLUMNS => TileJob {
                    columns: COLUMNS,
                    ..*job
                }
                .finish(i, &mut line),
                _ => job.finish(i, &mut line),
            }
        }
    }
}
