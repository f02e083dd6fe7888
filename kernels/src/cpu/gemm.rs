//! Sums of matrix products in f32: `C (+)= A₁ B₁ + A₂ B₂ + …`, any strides, any number of threads.
//!
//! Several products share one C so that the low-rank product of an adapter costs no pass of its
//! own over the output. The depth is never split between threads: every element of C is summed in
//! one order, and results do not depend on how many cores there are.

use std::ops::Range;

use rayon::prelude::*;

use super::isa::Isa;
use super::matrix::{Matrix, MatrixMut};
use super::scratch::with_scratch;
use super::tile::{Portable, Tile, TileJob};
#[cfg(target_arch = "x86_64")]
use super::{tile_avx2::Avx2, tile_avx512::Avx512};

/// Depth of a packed block: a panel of B, 16 KiB, and the rows of A beside it stay in the first
/// level of cache. Twice the depth fits too, but longer sums round more: SmolLM2's logits were then
/// 1.05e-4 from those in f64, and are 8.9e-5.
pub(crate) const DEPTH: usize = 128;
/// Rows of A of one block: with [`DEPTH`] columns they take a sixth of the second level of cache.
const BLOCK_ROWS: usize = 336;
/// Panels of B that are packed together: another third.
const GROUP_PANELS: usize = 8;
/// Multiply-adds below which a second thread costs more than it brings.
const SERIAL_WORK: usize = 1 << 18;
/// Rows of C up to which a B of contiguous depth is read in place, as A is: decoding.
const FEW_ROWS: usize = 32;
/// Columns of C up to which a transposed A is read in lines, as B is: gradients of factors.
const FEW_COLUMNS: usize = 12;
/// Rows of C for each column from which on A is read once and B packed again and again.
const TALL: usize = 16;
/// Rows of a block of a tall C: few enough that C stays in the cache between depths.
const TALL_ROWS: usize = 2016;
/// Most elements of a tile.
const TILE: usize = 12 * 32;

/// A sum of products of `[m, kᵢ]` and `[kᵢ, n]`.
pub type Products<'a> = [(Matrix<'a>, Matrix<'a>)];

/// `C (+)= Σ aᵢ bᵢ`; `c` says whether it is added or replaced.
///
/// # Panics
///
/// If the shapes disagree.
pub fn gemm(mut c: MatrixMut<'_>, products: &Products<'_>) {
    for (a, b) in products {
        let shapes = (a.rows(), b.columns(), a.columns());
        assert_eq!(
            shapes,
            (c.rows(), c.columns(), b.rows()),
            "shapes of a matrix product"
        );
    }
    let few_rows = c.rows() <= FEW_ROWS.min(c.columns());
    let few_columns = c.columns() <= FEW_COLUMNS.min(c.rows());
    if (few_rows && products.iter().all(|(_, b)| b.row_stride() == 1))
        || (few_columns && products.iter().all(|(a, _)| a.row_stride() == 1))
    {
        let swapped: Vec<_> = products
            .iter()
            .map(|(a, b)| (b.transposed(), a.transposed()))
            .collect();
        run(&c.transposed(), &swapped);
    } else {
        run(&c, products);
    }
}

fn run(c: &MatrixMut<'_>, products: &Products<'_>) {
    match Isa::detect() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if c.columns() <= 16 => Plan::new::<Avx512<1>>(c, products).run::<Avx512<1>>(),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => Plan::new::<Avx512<2>>(c, products).run::<Avx512<2>>(),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => Plan::new::<Avx2>(c, products).run::<Avx2>(),
        Isa::Portable => Plan::new::<Portable>(c, products).run::<Portable>(),
    }
}

/// How the columns and rows of C are handed out.
struct Plan<'a> {
    c: &'a MatrixMut<'a>,
    products: &'a Products<'a>,
    panels: usize,
    groups: usize,
    row_blocks: usize,
}

/// Where the lines of a panel of B lie.
struct Lines {
    first: *const f32,
    stride: usize,
}

/// Rows of one product, over a part of its depth.
struct Block<'a> {
    a: &'a Matrix<'a>,
    depths: Range<usize>,
    rows: Range<usize>,
    adds: bool,
}

impl<'a> Plan<'a> {
    fn new<T: Tile>(c: &'a MatrixMut<'a>, products: &'a Products<'a>) -> Self {
        let depth: usize = products.iter().map(|(a, _)| a.columns()).sum();
        let panels = c.columns().div_ceil(T::COLUMNS);
        let threads = rayon::current_num_threads();
        let serial = threads == 1 || c.rows() * c.columns() * depth < SERIAL_WORK;
        let wanted = if serial { 1 } else { 2 * threads };
        // Each group packs its panels of B by itself, and each block of rows packs them again:
        // rows are split only where columns are few.
        let tall = c.rows() >= TALL * c.columns();
        let groups = panels.div_ceil(GROUP_PANELS).max(1);
        let groups = if tall {
            groups
        } else {
            groups.max(wanted.min(panels))
        };
        let finest = c
            .rows()
            .div_ceil(if tall { TALL_ROWS } else { 4 * T::ROWS });
        let row_blocks = if tall {
            finest
        } else {
            wanted.div_ceil(groups).min(finest)
        }
        .max(1);
        Self {
            c,
            products,
            panels,
            groups,
            row_blocks,
        }
    }

    fn run<T: Tile>(&self) {
        let tasks = self.groups * self.row_blocks;
        if tasks == 1 {
            self.task::<T>(0);
        } else {
            (0..tasks)
                .into_par_iter()
                .for_each(|task| self.task::<T>(task));
        }
    }

    /// One group of panels by one block of rows of C.
    fn task<T: Tile>(&self, task: usize) {
        let (group, row_block) = (task % self.groups, task / self.groups);
        let panels = share(self.panels, self.groups, group);
        let strips = share(self.c.rows().div_ceil(T::ROWS), self.row_blocks, row_block);
        let rows = strips.start * T::ROWS..(strips.end * T::ROWS).min(self.c.rows());
        let mut adds = self.c.adds();
        for (a, b) in self.products {
            let step = depth_step(a.columns());
            for start in (0..a.columns()).step_by(step) {
                let depths = start..(start + step).min(a.columns());
                let block = Block {
                    a,
                    depths: depths.clone(),
                    rows: rows.clone(),
                    adds,
                };
                let panel_floats = depths.len() * T::COLUMNS;
                with_scratch(panels.len() * panel_floats, |packed| {
                    let lines: Vec<Lines> = packed
                        .chunks_exact_mut(panel_floats)
                        .zip(panels.clone())
                        .map(|(to, panel)| self.lines::<T>(b, panel, depths.clone(), to))
                        .collect();
                    self.block::<T>(&block, panels.start, &lines);
                });
                adds = true;
            }
        }
        if !adds {
            self.clear::<T>(panels, rows);
        }
    }

    /// Panel `panel` of `b`: packed to `to`, or in place where packing would not pay.
    fn lines<T: Tile>(
        &self,
        b: &Matrix<'_>,
        panel: usize,
        depths: Range<usize>,
        to: &mut [f32],
    ) -> Lines {
        let column = panel * T::COLUMNS;
        let whole = column + T::COLUMNS <= b.columns();
        if whole && b.column_stride() == 1 && self.c.rows() <= 2 * T::ROWS {
            let first = b
                .pointer()
                .wrapping_add(depths.start * b.row_stride() + column);
            return Lines {
                first,
                stride: b.row_stride(),
            };
        }
        pack::<T>(b, column, depths.start, to);
        Lines {
            first: to.as_ptr(),
            stride: T::COLUMNS,
        }
    }

    fn block<T: Tile>(&self, block: &Block<'_>, first_panel: usize, lines: &[Lines]) {
        let Block {
            a,
            depths,
            rows,
            adds,
        } = block;
        let c = self.c;
        for top in rows.clone().step_by(BLOCK_ROWS) {
            let bottom = (top + BLOCK_ROWS).min(rows.end);
            for (i, panel) in lines.iter().enumerate() {
                let column = (first_panel + i) * T::COLUMNS;
                for row in (top..bottom).step_by(T::ROWS) {
                    let a_offset = row * a.row_stride() + depths.start * a.column_stride();
                    let c_offset = row * c.row_stride() + column * c.column_stride();
                    let job = TileJob {
                        a: a.pointer().wrapping_add(a_offset),
                        a_row_stride: a.row_stride(),
                        a_depth_stride: a.column_stride(),
                        b: panel.first,
                        b_line_stride: panel.stride,
                        c: c.pointer().wrapping_add(c_offset),
                        c_row_stride: c.row_stride(),
                        rows: (bottom - row).min(T::ROWS),
                        columns: (c.columns() - column).min(T::COLUMNS),
                        depth: depths.len(),
                        adds: *adds,
                    };
                    // SAFETY: `run` detected the instruction set. Rows and depths lie within A by
                    // its own check, rows and columns within C, which this task alone writes:
                    // tasks own disjoint panels or rows. The panel holds `depth` lines.
                    unsafe {
                        if c.column_stride() == 1 {
                            T::run(&job);
                        } else {
                            run_scattered::<T>(job, c.column_stride());
                        }
                    }
                }
            }
        }
    }

    /// A sum of no products.
    fn clear<T: Tile>(&self, panels: Range<usize>, rows: Range<usize>) {
        let columns = panels.start * T::COLUMNS..(panels.end * T::COLUMNS).min(self.c.columns());
        for row in rows {
            for column in columns.clone() {
                let offset = row * self.c.row_stride() + column * self.c.column_stride();
                // SAFETY: within C, and this task alone writes these rows and columns.
                unsafe { *self.c.pointer().add(offset) = 0.0 };
            }
        }
    }
}

/// Runs a tile whose columns are not contiguous in C.
///
/// # Safety
///
/// As for [`Tile::run`], with columns `column_stride` apart.
unsafe fn run_scattered<T: Tile>(job: TileJob, column_stride: usize) {
    let mut tile = [0.0f32; TILE];
    let here = TileJob {
        c: tile.as_mut_ptr(),
        c_row_stride: T::COLUMNS,
        adds: false,
        ..job
    };
    // SAFETY: the local tile has room for any; the rest is the caller's promise.
    unsafe {
        T::run(&here);
        for column in 0..job.columns {
            for row in 0..job.rows {
                let c = job.c.add(row * job.c_row_stride + column * column_stride);
                let value = tile[row * T::COLUMNS + column];
                *c = if job.adds { *c + value } else { value };
            }
        }
    }
}

/// Part `i` of `0..n` cut into `parts` nearly equal ranges.
fn share(n: usize, parts: usize, i: usize) -> Range<usize> {
    n * i / parts..n * (i + 1) / parts
}

/// Depth of the blocks of a product: equal ones, about [`DEPTH`].
pub(crate) fn depth_step(depth: usize) -> usize {
    let blocks = ((depth + DEPTH / 2) / DEPTH).max(1);
    depth.div_ceil(blocks).max(1)
}

/// Packs columns `column..` of `b` from depth `start` on, padding missing columns with zeros.
fn pack<T: Tile>(b: &Matrix<'_>, column: usize, start: usize, to: &mut [f32]) {
    let depth = to.len() / T::COLUMNS;
    let columns = (b.columns() - column).min(T::COLUMNS);
    let from = b
        .pointer()
        .wrapping_add(start * b.row_stride() + column * b.column_stride());
    // SAFETY: depths `start..start + depth` and `columns` columns lie within `b` by its own check;
    // `run` detected the instruction set.
    unsafe {
        if columns == T::COLUMNS && b.row_stride() == 1 {
            T::pack_transposed(from, b.column_stride(), depth, to.as_mut_ptr());
        } else if columns == T::COLUMNS && b.column_stride() == 1 {
            for (p, line) in to.chunks_exact_mut(T::COLUMNS).enumerate() {
                let row = std::slice::from_raw_parts(from.add(p * b.row_stride()), T::COLUMNS);
                line.copy_from_slice(row);
            }
        } else {
            for (p, line) in to.chunks_exact_mut(T::COLUMNS).enumerate() {
                line[columns..].fill(0.0);
                for (j, value) in line[..columns].iter_mut().enumerate() {
                    *value = *from.add(p * b.row_stride() + j * b.column_stride());
                }
            }
        }
    }
}
