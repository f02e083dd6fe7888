//! What a matrix product is cut into: tiles of C that fit the registers of one core.
//!
//! B is a panel of a packed matrix; A is read one broadcast element at a time, from a strip or where
//! it lies.

use wide::f32x4;

/// One tile: `c[rows, columns] (+)= a[rows, depth] b[depth, COLUMNS]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileJob {
    /// Element `(0, 0)` of A; element `(i, p)` is `i * a_row_stride + p * a_depth_stride` on.
    pub(crate) a: *const f32,
    pub(crate) a_row_stride: usize,
    pub(crate) a_depth_stride: usize,
    /// `depth` lines of [`Tile::COLUMNS`] floats; columns that do not exist hold any value.
    pub(crate) b: *const f32,
    /// [`Tile::COLUMNS`] for a packed panel; more where B is read where it lies.
    pub(crate) b_line_stride: usize,
    /// Element `(0, 0)` of C, whose columns are contiguous.
    pub(crate) c: *mut f32,
    pub(crate) c_row_stride: usize,
    /// At least 1, at most [`Tile::ROWS`].
    pub(crate) rows: usize,
    /// At least 1, at most [`Tile::COLUMNS`].
    pub(crate) columns: usize,
    pub(crate) depth: usize,
    /// Whether C holds a sum to add to; if not it may be uninitialised.
    pub(crate) adds: bool,
}

/// Tiles of one instruction set.
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

/// Tiles in vectors of four, for CPUs without a version of their own: NEON is such.
#[derive(Debug)]
pub(crate) struct Portable;

impl Tile for Portable {
    const ROWS: usize = 4;
    const COLUMNS: usize = 16;

    unsafe fn run(job: &TileJob) {
        // SAFETY: as the caller promises; each arm passes the row count that the job states.
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
/// `job` as [`TileJob`] demands, with `job.rows == MR`.
unsafe fn portable<const MR: usize>(job: &TileJob) {
    const VECTORS: usize = Portable::COLUMNS / 4;
    let mut sums = [[f32x4::ZERO; VECTORS]; MR];
    // SAFETY: indices stay within the shape that the caller vouches for.
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
            let sum = sum.map(f32x4::to_array);
            for (j, &value) in sum.as_flattened().iter().enumerate().take(job.columns) {
                let c = job.c.add(i * job.c_row_stride + j);
                *c = if job.adds { *c + value } else { value };
            }
        }
    }
}
