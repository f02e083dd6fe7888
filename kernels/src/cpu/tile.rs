//! Tiles of a matmul result that fit in the registers of one core.
//!
//! B is a panel of a packed matrix; A is read one broadcast element at a time, from a strip or in
//! place.

use wide::f32x4;

/// One tile: `c[rows, columns] = a[rows, depth] b[depth, COLUMNS] + sums + bias + residual`. Null
/// summands are left out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileJob {
    /// Element `(0, 0)` of A; element `(i, p)` is at offset `i * a_row_stride + p *
    /// a_depth_stride`.
    pub(crate) a: *const f32,
    pub(crate) a_row_stride: usize,
    pub(crate) a_depth_stride: usize,
    /// `depth` lines of [`Tile::COLUMNS`] floats; missing columns have arbitrary values.
    pub(crate) b: *const f32,
    /// [`Tile::COLUMNS`] for a packed panel; larger if B is read in place.
    pub(crate) b_line_stride: usize,
    /// Distance in floats from the first 16 columns of a line to the others.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "portable tiles have at most 16 columns")
    )]
    pub(crate) b_half_stride: usize,
    /// Element `(0, 0)` of the sums over earlier depths, which may be C itself.
    pub(crate) sums: *const f32,
    pub(crate) sums_row_stride: usize,
    /// One value per column.
    pub(crate) bias: *const f32,
    /// Element `(0, 0)` of the residual, which may be C itself.
    pub(crate) residual: *const f32,
    pub(crate) residual_row_stride: usize,
    /// Element `(0, 0)` of C, whose columns are contiguous; it may be uninitialised.
    pub(crate) c: *mut f32,
    pub(crate) c_row_stride: usize,
    /// Whether C is probably not cached, so that its lines should be prefetched.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "portable tiles do not prefetch")
    )]
    pub(crate) c_is_far: bool,
    /// Data that is read next, and that the tile prefetches: the first byte, and the bytes per
    /// depth.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "portable tiles do not prefetch")
    )]
    pub(crate) next: (*const u8, usize),
    /// At least 1, at most [`Tile::ROWS`].
    pub(crate) rows: usize,
    /// At least 1, at most [`Tile::COLUMNS`].
    pub(crate) columns: usize,
    pub(crate) depth: usize,
}

impl TileJob {
    /// Finishes row `row` of the tile, whose products are `line`, in portable loops.
    ///
    /// # Safety
    ///
    /// The pointers are valid for the job's shape, and the row is one of its rows.
    #[inline(always)]
    pub(crate) unsafe fn finish(&self, row: usize, line: &mut [f32]) {
        let line = &mut line[..self.columns];
        // SAFETY: each pointer has `columns` elements.
        unsafe {
            if !self.sums.is_null() {
                let sums = self.sums.add(row * self.sums_row_stride);
                let sums = std::slice::from_raw_parts(sums, line.len());
                line.iter_mut().zip(sums).for_each(|(v, sum)| *v += sum);
            }
            if !self.bias.is_null() {
                let bias = std::slice::from_raw_parts(self.bias, line.len());
                line.iter_mut().zip(bias).for_each(|(v, b)| *v += b);
            }
            if !self.residual.is_null() {
                let residual = self.residual.add(row * self.residual_row_stride);
                let residual = std::slice::from_raw_parts(residual, line.len());
                line.iter_mut().zip(residual).for_each(|(v, r)| *v += r);
            }
            let c = self.c.add(row * self.c_row_stride);
            c.copy_from_nonoverlapping(line.as_ptr(), line.len());
        }
    }
}

/// Tiles for one instruction set.
pub(crate) trait Tile {
    /// Rows of a full tile.
    const ROWS: usize;
    /// Columns of a panel of B.
    const COLUMNS: usize;

    /// # Safety
    ///
    /// The CPU has the instruction set, and the pointers of `job` are valid for its shape.
    unsafe fn run(job: &TileJob);
}

/// Tiles in vectors of four, for CPUs without their own implementation, such as those with NEON.
#[derive(Debug)]
pub(crate) struct Portable;

impl Tile for Portable {
    const ROWS: usize = 4;
    const COLUMNS: usize = 16;

    unsafe fn run(job: &TileJob) {
        // SAFETY: guaranteed by the caller; each arm passes the row count of the job.
        unsafe {
            match job.rows {
                1 => portable::<1>(job),
                2 => portable::<2>(job),
                3 => portable::<3>(job),
                _ => portable::<4>(job),
            }
        }
    }
}

/// # Safety
///
/// `job` as [`TileJob`] requires, with `job.rows == MR`.
unsafe fn portable<const MR: usize>(job: &TileJob) {
    const VECTORS: usize = Portable::COLUMNS / 4;
    let mut sums = [[f32x4::ZERO; VECTORS]; MR];
    // SAFETY: indices are within the shape, which the caller guarantees.
    unsafe {
        for p in 0..job.depth {
            let line = *job
                .b
                .add(p * job.b_line_stride)
                .cast::<[[f32; 4]; VECTORS]>();
            let line = line.map(f32x4::new);
            for (i, sum) in sums.iter_mut().enumerate() {
                let value = f32x4::splat(*job.a.add(i * job.a_row_stride + p * job.a_depth_stride));
                for (sum, b) in sum.iter_mut().zip(line) {
                    *sum = value.mul_add(b, *sum);
                }
            }
        }
        for (i, sum) in sums.into_iter().enumerate() {
            let mut sum = sum.map(f32x4::to_array);
            job.finish(i, sum.as_flattened_mut());
        }
    }
}
