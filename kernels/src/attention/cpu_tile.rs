//! Small matmuls on the calling thread, in units of 32 bits along the depth.
//!
//! A unit is one f32, or two adjacent bf16 that one instruction multiplies and adds, so loops and
//! strides are the same for both.

use std::marker::PhantomData;

use super::cpu_softmax::{Running, ScoreBlock, score_gradients};
use crate::cpu::number::Number;
use crate::cpu::tile::{Tile, TileJob};

/// Columns per panel of the right operand.
pub(super) const PANEL: usize = 32;

/// Unit `(i, p)` is at offset `i * row_stride + p * depth_stride` from `first`, in units.
#[derive(Debug, Clone, Copy)]
pub(super) struct Left {
    pub(super) first: *const f32,
    pub(super) row_stride: usize,
    pub(super) depth_stride: usize,
}

impl Left {
    /// The rows starting at `row`.
    pub(super) fn rows_from(self, row: usize) -> Self {
        Self {
            first: self.first.wrapping_add(row * self.row_stride),
            ..self
        }
    }
}

/// Panels of [`PANEL`] columns: line `p` of panel `j` is at offset `j * stride + p * PANEL` from
/// `first`, in units.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panels {
    pub(super) first: *const f32,
    pub(super) stride: usize,
}

/// The result, f32 with contiguous rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) first: *mut f32,
    pub(super) row_stride: usize,
    pub(super) onto: Onto,
}

/// Initial value to which a product is added.
#[derive(Debug, Clone, Copy)]
pub(super) enum Onto {
    Nothing,
    /// The current contents of the target.
    Sums,
    /// The current contents of the target, each row multiplied by its softmax correction.
    Corrected(*const Running),
}

impl Onto {
    /// Zero for the first of several products, the sums for the others.
    pub(super) fn after(products: usize) -> Self {
        if products == 0 {
            Self::Nothing
        } else {
            Self::Sums
        }
    }

    /// For the rows starting at `row`.
    fn rows_from(self, row: usize) -> Self {
        match self {
            Self::Corrected(states) => Self::Corrected(states.wrapping_add(row)),
            other => other,
        }
    }
}

/// `c[rows, columns] (+)= a[rows, depth] b[depth, columns]`: at most [`Arithmetic::ROWS`] rows and
/// [`PANEL`] columns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job {
    pub(super) a: Left,
    pub(super) b: *const f32,
    pub(super) c: Target,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) depth: usize,
}

/// Multiplies one element type with one instruction set.
pub(super) trait Arithmetic {
    /// Element type of both operands.
    type Number: Number;
    /// Rows of a full tile.
    const ROWS: usize;
    /// Elements per unit.
    const PER_UNIT: usize = 4 / size_of::<Self::Number>();

    /// # Safety
    ///
    /// The CPU has the instruction set, and the pointers of `job` are valid for its shape.
    unsafe fn tile(job: &Job);

    /// Replaces scores by probabilities and probability gradients by score gradients, as lines of
    /// units along the rows, `KEYS * PER_UNIT` apart. Also writes the score gradients as rows to
    /// `block.to`.
    ///
    /// # Safety
    ///
    /// The CPU has the instruction set.
    unsafe fn score_gradients(block: ScoreBlock<'_, Self::Number>) {
        const { assert!(Self::PER_UNIT == 1, "rows and lines are the same for f32") };
        score_gradients(block);
    }
}

/// `C (+)= A B` with `[m, k]` and `[k, n]`, `k` in units.
///
/// # Safety
///
/// The CPU has the instruction set of `A`; the operands are valid for the shape, and nothing else
/// accesses C during the call.
pub(super) unsafe fn multiply<A: Arithmetic>(c: Target, a: Left, b: Panels, [m, n, k]: [usize; 3]) {
    for (panel, column) in (0..n).step_by(PANEL).enumerate() {
        for row in (0..m).step_by(A::ROWS) {
            let job = Job {
                a: a.rows_from(row),
                b: b.first.wrapping_add(panel * b.stride),
                c: Target {
                    first: c.first.wrapping_add(row * c.row_stride + column),
                    onto: c.onto.rows_from(row),
                    ..c
                },
                rows: (m - row).min(A::ROWS),
                columns: (n - column).min(PANEL),
                depth: k,
            };
            // SAFETY: the job is within the operands, which the caller guarantees to be valid.
            unsafe { A::tile(&job) };
        }
    }
}

/// f32, with the tiles of the packed products.
#[derive(Debug)]
pub(super) struct WithTiles<T>(PhantomData<T>);

impl<T: Tile> Arithmetic for WithTiles<T> {
    type Number = f32;
    const ROWS: usize = T::ROWS;

    unsafe fn tile(job: &Job) {
        const {
            assert!(
                PANEL.is_multiple_of(T::COLUMNS),
                "a panel is divided into whole tiles"
            )
        };
        let (c, a) = (job.c, job.a);
        if let Onto::Corrected(states) = c.onto {
            for row in 0..job.rows {
                // SAFETY: there is a state for each row, and rows have this number of columns.
                unsafe {
                    let first = c.first.add(row * c.row_stride);
                    let sums = std::slice::from_raw_parts_mut(first, job.columns);
                    let factor = (*states.add(row)).correction;
                    sums.iter_mut().for_each(|sum| *sum *= factor);
                }
            }
        }
        for column in (0..job.columns).step_by(T::COLUMNS) {
            let target = c.first.wrapping_add(column);
            let tile = TileJob {
                a: a.first,
                a_row_stride: a.row_stride,
                a_depth_stride: a.depth_stride,
                b: job.b.wrapping_add(column),
                b_line_stride: PANEL,
                b_half_stride: PANEL / 2,
                sums: match c.onto {
                    Onto::Nothing => std::ptr::null(),
                    Onto::Sums | Onto::Corrected(_) => target,
                },
                sums_row_stride: c.row_stride,
                bias: std::ptr::null(),
                residual: std::ptr::null(),
                residual_row_stride: 0,
                c: target,
                c_row_stride: c.row_stride,
                next: (job.b.cast(), 0),
                c_is_far: false,
                rows: job.rows,
                columns: (job.columns - column).min(T::COLUMNS),
                depth: job.depth,
            };
            // SAFETY: guaranteed by the caller; panels have all their columns.
            unsafe { T::run(&tile) };
        }
    }
}
