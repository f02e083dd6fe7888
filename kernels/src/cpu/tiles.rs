//! Small products on the calling thread, with operands read where they lie.

use super::tile::{Tile, TileJob};

/// Depth after which the next lines of B begin to push the first out of the nearest cache.
const DEPTH: usize = 256;

/// Element `(i, p)` of A lies `i * row_stride + p * depth_stride` from `first`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left {
    pub(crate) first: *const f32,
    pub(crate) row_stride: usize,
    pub(crate) depth_stride: usize,
}

/// Line `p` of B lies `p * stride` from `first`, and is readable up to a multiple of 32 columns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lines {
    pub(crate) first: *const f32,
    pub(crate) stride: usize,
}

/// C, with contiguous rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) first: *mut f32,
    pub(crate) row_stride: usize,
    /// Whether the product is added.
    pub(crate) adds: bool,
}

/// `C (+)= A B` with `[m, k]` and `[k, n]`.
///
/// # Safety
///
/// The CPU has the instruction set of `T`; the operands are valid for the shape, and nothing else
/// touches C meanwhile.
pub(crate) unsafe fn multiply<T: Tile>(c: Target, a: Left, b: Lines, [m, n, k]: [usize; 3]) {
    for start in (0..k).step_by(DEPTH) {
        for column in (0..n).step_by(T::COLUMNS) {
            for row in (0..m).step_by(T::ROWS) {
                let job = TileJob {
                    a: a.first
                        .wrapping_add(row * a.row_stride + start * a.depth_stride),
                    a_row_stride: a.row_stride,
                    a_depth_stride: a.depth_stride,
                    b: b.first.wrapping_add(start * b.stride + column),
                    b_line_stride: b.stride,
                    c: c.first.wrapping_add(row * c.row_stride + column),
                    c_row_stride: c.row_stride,
                    rows: (m - row).min(T::ROWS),
                    columns: (n - column).min(T::COLUMNS),
                    depth: (k - start).min(DEPTH),
                    adds: c.adds || start > 0,
                };
                // SAFETY: the job lies within the operands that the caller vouches for.
                unsafe { T::run(&job) };
            }
        }
    }
}
