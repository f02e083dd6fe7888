//! Sums of products of bf16 rows and packed panels: `C = residual + bias + A₁ B₁ + A₂ B₂ + …`.
//!
//! A block of rows stays in the second level of cache while all panels pass by. The depth is never
//! split: an element of C is summed in registers from end to end, in one order, and does not depend
//! on the number of threads.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use burn::tensor::bf16;
use rayon::prelude::*;

use super::panels::{COLUMNS, Panels};
use super::tile::{self, ROWS, TileJob, TileOutput, TileTerm};

/// Elements of A in one block of rows: 384 KiB of the second level of cache.
const BLOCK_ELEMENTS: usize = 192 << 10;
/// Rows up to which threads share panels, not rows: decoding.
const FEW_ROWS: usize = 4 * ROWS;
/// Multiply-adds below which a second thread costs more than it brings.
const SERIAL_WORK: usize = 1 << 19;
/// Most products of one sum.
const TERMS: usize = 4;

/// Rows to read, `stride` apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a> {
    values: &'a [bf16],
    stride: usize,
    first: usize,
    n: usize,
}

impl<'a> Rows<'a> {
    /// `n` rows that begin at `first` in rows of `stride` elements.
    pub(crate) fn new(values: &'a [bf16], stride: usize, first: usize) -> Self {
        let n = values.len().checked_div(stride).unwrap_or(0);
        Self {
            values,
            stride,
            first,
            n,
        }
    }

    /// Where row `row` begins, for readers of `pairs` pairs from pair `first_pair` on.
    fn pointer(&self, row: usize) -> *const bf16 {
        self.values
            .as_ptr()
            .wrapping_add(row * self.stride + self.first)
    }

    /// Whether pairs up to `depth` lie within every row's data.
    fn holds(&self, depth: usize) -> bool {
        let even = depth.next_multiple_of(2);
        self.n == 0 || (self.n - 1) * self.stride + self.first + even <= self.values.len()
    }
}

/// The same rows with an even stride: a zero is added to rows of odd width.
pub(crate) fn evened(values: &[bf16], width: usize) -> (Cow<'_, [bf16]>, usize) {
    if width.is_multiple_of(2) {
        return (Cow::Borrowed(values), width);
    }
    let mut even = vec![bf16::ZERO; values.len() / width * (width + 1)];
    for (to, from) in even
        .chunks_exact_mut(width + 1)
        .zip(values.chunks_exact(width))
    {
        to[..width].copy_from_slice(from);
    }
    (Cow::Owned(even), width + 1)
}

/// One product.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Term<'a> {
    pub(crate) left: Rows<'a>,
    pub(crate) right: &'a Panels,
}

/// Where a sum goes: columns from `first` on in rows of `stride` elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output<'a> {
    to: TileOutput,
    stride: usize,
    first: usize,
    elements: usize,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: tasks write disjoint rows or panels of it; see `Sum::block`.
unsafe impl Sync for Output<'_> {}
// SAFETY: as above.
unsafe impl Send for Output<'_> {}

impl<'a> Output<'a> {
    pub(crate) fn f32(to: &'a mut [MaybeUninit<f32>], stride: usize) -> Self {
        Self {
            elements: to.len(),
            to: TileOutput::F32(to.as_mut_ptr().cast()),
            stride,
            first: 0,
            lifetime: PhantomData,
        }
    }

    pub(crate) fn bf16(to: &'a mut [MaybeUninit<bf16>], stride: usize) -> Self {
        Self {
            elements: to.len(),
            to: TileOutput::Bf16(to.as_mut_ptr().cast()),
            stride,
            first: 0,
            lifetime: PhantomData,
        }
    }

    /// The same from column `first` on.
    pub(crate) fn at_column(self, first: usize) -> Self {
        Self { first, ..self }
    }

    fn at(&self, offset: usize) -> TileOutput {
        match self.to {
            TileOutput::F32(to) => TileOutput::F32(to.wrapping_add(offset)),
            TileOutput::Bf16(to) => TileOutput::Bf16(to.wrapping_add(offset)),
        }
    }
}

/// Who computes a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spread {
    /// The caller, which is one of many.
    OneThread,
    /// All threads, each some panels: few rows.
    Panels,
}

/// A sum of products with what is added to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sum<'a> {
    /// At least one, at most four.
    pub(crate) terms: &'a [Term<'a>],
    /// One number a column.
    pub(crate) bias: Option<&'a [f32]>,
    /// As large as the output, whose first column must be 0.
    pub(crate) residual: Option<&'a [f32]>,
    pub(crate) output: Output<'a>,
}

impl Sum<'_> {
    /// Computes every element, with the panels shared between threads unless `spread` forbids it.
    pub(crate) fn run(&self, spread: Spread) {
        let (n, n_panels) = (self.rows(), self.terms[0].right.len());
        let threads = rayon::current_num_threads();
        let work = n * self.depth() * n_panels * COLUMNS;
        if spread == Spread::OneThread || threads == 1 || work < SERIAL_WORK {
            self.block(0..n_panels);
        } else {
            let tasks = (4 * threads).min(n_panels);
            (0..tasks).into_par_iter().for_each(|task| {
                self.block(n_panels * task / tasks..n_panels * (task + 1) / tasks);
            });
        }
    }

    fn rows(&self) -> usize {
        self.terms[0].left.n
    }

    fn depth(&self) -> usize {
        self.terms.iter().map(|term| term.right.depth()).sum()
    }

    fn block(&self, panels: Range<usize>) {
        let columns = self.check();
        for panel in panels {
            let column = panel * COLUMNS;
            for row in (0..self.rows()).step_by(ROWS) {
                let mut terms = [TileTerm {
                    a: std::ptr::null(),
                    a_stride: 0,
                    b: std::ptr::null(),
                    pairs: 0,
                }; TERMS];
                for (to, term) in terms.iter_mut().zip(self.terms) {
                    let b = term.right.panel(panel);
                    *to = TileTerm {
                        a: term.left.pointer(row).wrapping_add(2 * b.first_pair),
                        a_stride: term.left.stride,
                        b: b.words,
                        pairs: b.pairs,
                    };
                }
                let offset = row * self.output.stride + self.output.first + column;
                let job = TileJob {
                    terms: &terms[..self.terms.len()],
                    rows: ROWS.min(self.rows() - row),
                    columns: COLUMNS.min(columns - column),
                    bias: self
                        .bias
                        .map_or(std::ptr::null(), |bias| bias[column..].as_ptr()),
                    residual: self
                        .residual
                        .map_or(std::ptr::null(), |r| r[offset..].as_ptr()),
                    output: self.output.at(offset),
                    output_stride: self.output.stride,
                };
                // SAFETY: `check` found rows and columns within operands and output; tasks
                // write disjoint rows or panels.
                unsafe { tile::run(&job) };
            }
        }
    }

    /// Columns of the output.
    ///
    /// # Panics
    ///
    /// If an operand is too small for the product: a bug of the caller.
    fn check(&self) -> usize {
        let columns = self.terms[0].right.columns();
        let n = self.rows();
        assert!(self.terms.len() <= TERMS, "too many products in a sum");
        for Term { left, right } in self.terms {
            let fits = left.n == n && right.columns() == columns && left.holds(right.depth());
            assert!(fits, "shapes of a sum of products");
        }
        let Output {
            stride,
            first,
            elements,
            ..
        } = self.output;
        let end = if n == 0 {
            0
        } else {
            (n - 1) * stride + first + columns
        };
        assert!(
            end <= elements && first + columns <= stride.max(columns),
            "size of the output"
        );
        assert!(
            self.bias.is_none_or(|bias| bias.len() >= columns),
            "size of the bias"
        );
        let residual_fits = |r: &[f32]| r.len() == elements && first == 0;
        assert!(
            self.residual.is_none_or(residual_fits),
            "size of the residual"
        );
        columns
    }
}

/// Rows of A with `depth` elements that stay in cache.
fn block_rows(depth: usize) -> usize {
    (BLOCK_ELEMENTS / depth.max(1)).clamp(ROWS, 30 * ROWS) / ROWS * ROWS
}

/// Calls `work` with blocks of rows and how their sums are spread.
///
/// Many rows are cut into blocks of about equal size, one thread each; few are one block, whose
/// panels threads share.
pub(crate) fn for_row_blocks(n: usize, depth: usize, work: impl Fn(Range<usize>, Spread) + Sync) {
    if n <= FEW_ROWS {
        work(0..n, Spread::Panels);
        return;
    }
    let threads = rayon::current_num_threads();
    let strips = n.div_ceil(ROWS);
    let blocks = n
        .div_ceil(block_rows(depth))
        .next_multiple_of(threads)
        .min(strips);
    (0..blocks).into_par_iter().for_each(|block| {
        let start = strips * block / blocks * ROWS;
        let end = (strips * (block + 1) / blocks * ROWS).min(n);
        work(start..end, Spread::OneThread);
    });
}
