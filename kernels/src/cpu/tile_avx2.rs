//! The innermost product for CPUs with AVX2 and FMA: up to 6 rows by 16 columns in registers.

use std::arch::x86_64::{
    __m256, _MM_HINT_T0, _mm_prefetch, _mm256_add_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps,
};

use super::tile::{Tile, TileJob};

const COLUMNS: usize = 16;
/// Numbers of a register.
const LANES: usize = COLUMNS / 2;
/// Lines of a panel from the one that is read to the one that is asked for.
const LINES_AHEAD: usize = 24;

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
            let high = _mm256_loadu_ps(b.add(LANES));
            _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(LINES_AHEAD * job.b_line_stride).cast());
            for (i, sum) in sums.iter_mut().enumerate() {
                let value = _mm256_set1_ps(*a.add(i * job.a_row_stride));
                sum[0] = _mm256_fmadd_ps(value, low, sum[0]);
                sum[1] = _mm256_fmadd_ps(value, high, sum[1]);
            }
            a = a.wrapping_add(job.a_depth_stride);
            b = b.wrapping_add(job.b_line_stride);
        }
        for (i, sum) in sums.into_iter().enumerate() {
            if job.columns == COLUMNS {
                for (v, value) in sum.into_iter().enumerate() {
                    finish(job, (i, LANES * v), value);
                }
            } else {
                let mut line = [0.0f32; COLUMNS];
                _mm256_storeu_ps(line.as_mut_ptr(), sum[0]);
                _mm256_storeu_ps(line.as_mut_ptr().add(LANES), sum[1]);
                job.finish(i, &mut line);
            }
        }
    }
}

/// Adds what is to be added to 8 columns of a row and writes them.
///
/// # Safety
///
/// As for [`tile`], with all columns.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn finish(job: &TileJob, (row, column): (usize, usize), mut value: __m256) {
    let place = |first: *const f32, stride: usize| first.wrapping_add(row * stride + column);
    // SAFETY: the row has these columns wherever it is read or written.
    unsafe {
        if !job.sums.is_null() {
            let sums = _mm256_loadu_ps(place(job.sums, job.sums_row_stride));
            value = _mm256_add_ps(sums, value);
        }
        if !job.bias.is_null() {
            value = _mm256_add_ps(value, _mm256_loadu_ps(place(job.bias, 0)));
        }
        if !job.residual.is_null() {
            let residual = place(job.residual, job.residual_row_stride);
            value = _mm256_add_ps(value, _mm256_loadu_ps(residual));
        }
        _mm256_storeu_ps(place(job.c, job.c_row_stride).cast_mut(), value);
    }
}
