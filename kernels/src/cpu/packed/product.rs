//! Sums of products of rows and packed panels: `C = residual + bias + A₁ B₁ + A₂ B₂ + …`.
//!
//! A block of rows, packed in strips or read in place, stays in the L2 cache while all panels are
//! processed. The summation order of an element of C does not depend on the number of threads. If C
//! is f32, a deep product is split into chunks of the depth, so that a block of many rows still
//! fits.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use burn::tensor::{DType, bf16};
use rayon::prelude::*;

use super::operand::Operand;
use super::panels::{COLUMNS, Panels};
use super::rows::{Rows, pad_rows_to_words};
use super::strips::{self, StripRows};
use super::tile::{ROWS, TERMS, TileJob, TileOutput, TileTerm};
use super::uninitialised;
use crate::cpu::number::Number;
use crate::cpu::pool::Buffer;
use crate::cpu::scratch::with_scratch;
use crate::cpu::shared::Shared;

/// Maximum bytes of A in one block of rows: a share of the L2 cache.
const BLOCK_BYTES: usize = 512 << 10;
/// Words of the depth that are multiplied at a time, if C is f32.
const CHUNK_WORDS: usize = 768;
/// Depth in words at which a non-f32 C is first accumulated in f32: one limit for unconverted rows,
/// one for widened rows, whose blocks take twice the memory.
const DEEP_WORDS: usize = 3072;
const DEEP_WIDENED: usize = 2048;
/// Up to this number of rows (decoding), threads split the panels instead of the rows.
pub(crate) const FEW_ROWS: usize = 4 * ROWS;
/// Up to this number, rows are not widened: memory is slower than pair instructions.
const FEW_WIDENED: usize = 4;
/// For a block that is read in place: its rows, and the words multiplied at a time. Larger chunks
/// need fewer passes over C.
const ROWS_IN_PLACE: usize = 7 * ROWS;
const CHUNK_IN_PLACE: usize = 4 * CHUNK_WORDS;
/// Number of panels from which packing the rows is worthwhile.
pub(crate) const MANY_PANELS: usize = 6;
/// Multiply-adds below which waking a second thread costs more than it saves.
pub(crate) const SERIAL_WORK: usize = 1 << 19;

/// One product, over the word range `words` of the depth.
#[derive(Debug, Clone)]
pub(crate) struct Term<'a, T> {
    left: Rows<'a, T>,
    right: &'a Panels<T>,
    words: Range<usize>,
}

impl<'a, T: Operand> Term<'a, T> {
    pub(crate) fn new(left: Rows<'a, T>, right: &'a Panels<T>) -> Self {
        let words = 0..right.depth().div_ceil(T::DEPTHS);
        Self { left, right, words }
    }

    /// The product restricted to `depths`; `left` starts at the first of them.
    ///
    /// # Panics
    ///
    /// If `depths` does not start at a word boundary: a bug of the caller.
    pub(crate) fn with_depths(
        left: Rows<'a, T>,
        right: &'a Panels<T>,
        depths: Range<usize>,
    ) -> Self {
        assert!(depths.start.is_multiple_of(T::DEPTHS) && depths.end <= right.depth());
        let words = depths.start / T::DEPTHS..depths.end.div_ceil(T::DEPTHS);
        Self { left, right, words }
    }
}

/// Output of a sum: columns starting at `first`, in rows of `stride` elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output<'a> {
    to: TileOutput,
    stride: usize,
    first: usize,
    elements: usize,
    adds: bool,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: tasks write disjoint rows or panels; see `Sum::block`.
unsafe impl Sync for Output<'_> {}
// SAFETY: as above.
unsafe impl Send for Output<'_> {}

impl<'a> Output<'a> {
    pub(crate) fn new<T: Operand>(to: &'a mut [MaybeUninit<T>], stride: usize) -> Self {
        Self {
            elements: to.len(),
            to: T::output(to.as_mut_ptr().cast()),
            stride,
            first: 0,
            adds: false,
            lifetime: PhantomData,
        }
    }

    /// An output to whose elements the sum is added.
    pub(crate) fn sums(to: &'a mut [f32], stride: usize) -> Self {
        Self {
            adds: true,
            ..Self::new(uninitialised(to), stride)
        }
    }

    /// The same output, starting at column `first`.
    pub(crate) fn at_column(self, first: usize) -> Self {
        Self { first, ..self }
    }

    fn offset_by(&self, offset: usize) -> TileOutput {
        match self.to {
            TileOutput::F32(to) => TileOutput::F32(to.wrapping_add(offset)),
            TileOutput::Bf16(to) => TileOutput::Bf16(to.wrapping_add(offset)),
        }
    }

    fn f32_at(&self, offset: usize) -> Option<*const f32> {
        match self.to {
            TileOutput::F32(to) => Some(to.wrapping_add(offset).cast_const()),
            TileOutput::Bf16(_) => None,
        }
    }
}

/// How the work of a sum is distributed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spread {
    /// Only the calling thread; other threads compute other sums.
    OneThread,
    /// All threads, which split the panels: for few rows.
    Panels,
}

/// Columns of a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Panelled {
    /// The columns of every panel.
    All,
    /// The columns of a range of panels (first panel, count); they are the first columns of the
    /// output.
    Some(usize, usize),
}

/// A sum of products, plus bias and residual.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sum<'a, T> {
    /// One to four products; the first may be deep.
    pub(crate) terms: &'a [Term<'a, T>],
    /// The columns, in panels.
    pub(crate) panels: Panelled,
    /// One value per column.
    pub(crate) bias: Option<&'a [f32]>,
    /// Same size as the output, from whose first column it is read.
    pub(crate) residual: Option<&'a [f32]>,
    pub(crate) output: Output<'a>,
}

/// A range of the depth of one term, with its rows if they were packed in strips.
#[derive(Debug, Clone)]
struct Piece<'a, T> {
    term: &'a Term<'a, T>,
    words: Range<usize>,
    strips: Option<*const T>,
}

impl<T: Operand> Sum<'_, T> {
    /// Computes every element; threads split the panels unless `spread` forbids it.
    pub(crate) fn run(&self, spread: Spread) {
        let (n, n_panels) = (self.rows(), self.panels().len());
        let threads = rayon::current_num_threads();
        let work = n * self.depth() * n_panels * COLUMNS;
        if spread == Spread::OneThread || threads == 1 || work < SERIAL_WORK {
            self.block(self.panels());
        } else {
            let (tasks, first) = ((4 * threads).min(n_panels), self.panels().start);
            (0..tasks).into_par_iter().for_each(|task| {
                let end = first + n_panels * (task + 1) / tasks;
                self.block(first + n_panels * task / tasks..end);
            });
        }
    }

    fn rows(&self) -> usize {
        self.terms[0].left.n
    }

    fn depth(&self) -> usize {
        let words: usize = self.terms.iter().map(|term| term.words.len()).sum();
        words * T::DEPTHS
    }

    fn panels(&self) -> Range<usize> {
        match self.panels {
            Panelled::All => 0..self.terms[0].right.len(),
            Panelled::Some(first, n) => first..first + n,
        }
    }

    fn block(&self, panels: Range<usize>) {
        let columns = self.check();
        let TileOutput::Bf16(to) = self.output.to else {
            return self.chunked(panels, columns);
        };
        if self.terms[0].words.len() < deep_words::<T>() {
            return self.chunked(panels, columns);
        }
        let base = self.panels().start;
        let end = (panels.end - base) * COLUMNS;
        let panel_columns = (panels.start - base) * COLUMNS..columns.min(end);
        with_scratch(self.rows() * columns, |sums| {
            Sum {
                terms: self.terms,
                panels: self.panels,
                bias: self.bias,
                residual: None,
                output: Output::new(uninitialised(&mut *sums), columns),
            }
            .chunked(panels, columns);
            for (row, sums) in sums.chunks_exact(columns).enumerate() {
                let offset = row * self.output.stride + self.output.first;
                for column in panel_columns.clone() {
                    let added = self
                        .residual
                        .map_or(0.0, |residual| residual[offset + column]);
                    // SAFETY: `check` verified that rows and columns are within the output.
                    unsafe { *to.add(offset + column) = bf16::narrow(sums[column] + added) };
                }
            }
        });
    }

    /// Sums the depth chunk by chunk.
    fn chunked(&self, panels: Range<usize>, columns: usize) {
        let n = self.rows();
        let chunks = self.chunks();
        let last = chunks.len() - 1;
        for (i, words) in chunks.into_iter().enumerate() {
            let first = &self.terms[0];
            let mut pieces = vec![Piece {
                term: first,
                words,
                strips: None,
            }];
            if i == last {
                pieces.extend(self.terms[1..].iter().map(|term| Piece {
                    term,
                    words: term.words.clone(),
                    strips: None,
                }));
            }
            // Few rows are read only once or twice, so they are read in place.
            let most = if T::widens() { FEW_WIDENED } else { FEW_ROWS };
            // Decided by the number of all panels, not of the panels of this thread: widened strips
            // affect the rounding, which must not depend on the number of threads.
            let is_little = n <= most || self.panels().len() < MANY_PANELS;
            let mut rows = pieces.iter().map(|piece| piece.term.left);
            if rows.all(|rows| rows.is_in_place() || is_little && rows.has_words()) {
                self.tiles(&pieces, panels.clone(), columns, i == 0);
                continue;
            }
            let strip_words = n.div_ceil(ROWS) * ROWS * T::strip_lines();
            let room: usize = pieces.iter().map(|p| p.words.len() * strip_words).sum();
            with_scratch(room, |mut room| {
                for piece in &mut pieces {
                    let (own, rest) = room.split_at_mut(piece.words.len() * strip_words);
                    piece.pack(own);
                    room = rest;
                }
                self.tiles(&pieces, panels.clone(), columns, i == 0);
            });
        }
    }

    /// Splits the depth of the first term.
    fn chunks(&self) -> Vec<Range<usize>> {
        let Range { start, end } = self.terms[0].words;
        let words = end - start;
        let chunks = match self.output.to {
            TileOutput::F32(_) => {
                let most = if self.terms[0].left.is_in_place() {
                    CHUNK_IN_PLACE
                } else {
                    CHUNK_WORDS
                };
                words.div_ceil(most).max(1)
            }
            TileOutput::Bf16(_) => 1,
        };
        (0..chunks)
            .map(|i| start + words * i / chunks..start + words * (i + 1) / chunks)
            .collect()
    }

    /// Computes all tiles of some panels; `begins` means that the output holds no partial sums yet.
    fn tiles(&self, pieces: &[Piece<'_, T>], panels: Range<usize>, columns: usize, begins: bool) {
        let (n, first_panel) = (self.rows(), self.panels().start);
        // A tile of few rows waits for its panel, so rows that are read in place are split evenly.
        let step = if pieces.iter().all(|piece| piece.strips.is_none()) {
            n.div_ceil(n.div_ceil(ROWS).max(1)).max(1)
        } else {
            ROWS
        };
        let mut jobs = Vec::with_capacity(n.div_ceil(step));
        for panel in panels {
            let column = (panel - first_panel) * COLUMNS;
            let bias = self.bias.filter(|_| begins);
            jobs.clear();
            jobs.extend((0..n).step_by(step).map(|row| {
                let offset = row * self.output.stride + self.output.first + column;
                let added = if begins && !self.output.adds {
                    self.residual.map(|r| r[offset..].as_ptr())
                } else {
                    self.output.f32_at(offset)
                };
                let mut terms = [TileTerm::NONE; TERMS];
                for (to, piece) in terms.iter_mut().zip(pieces) {
                    *to = piece.tile_term(row, panel);
                }
                TileJob {
                    terms,
                    n_terms: pieces.len(),
                    rows: step.min(n - row),
                    columns: COLUMNS.min(columns - column),
                    bias: bias.map_or(std::ptr::null(), |bias| bias[column..].as_ptr()),
                    residual: added.unwrap_or(std::ptr::null()),
                    residual_stride: self.output.stride,
                    output: self.output.offset_by(offset),
                    output_stride: self.output.stride,
                }
            }));
            // SAFETY: `check` verified that rows and columns are within operands and output; tasks
            // write disjoint rows or panels.
            unsafe { T::run_tiles(&jobs) };
        }
    }

    /// Number of columns of the output, after checking all shapes.
    ///
    /// # Panics
    ///
    /// If an operand is too small for the product: a bug of the caller.
    fn check(&self) -> usize {
        let all = self.terms[0].right.columns();
        let panels = self.panels();
        let columns = all.min(panels.end * COLUMNS) - panels.start * COLUMNS;
        let n = self.rows();
        assert!(self.terms.len() <= TERMS, "too many products in a sum");
        for Term { left, right, words } in self.terms {
            let fits = left.n == n && right.columns() == all && left.holds(words.len());
            assert!(fits, "the shapes of a sum of products do not match");
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
            "the output has the wrong size"
        );
        assert!(
            self.bias.is_none_or(|bias| bias.len() >= columns),
            "the bias has the wrong size"
        );
        let adds = self.output.adds;
        let residual_fits = |r: &[f32]| r.len() == elements && !adds;
        assert!(
            self.residual.is_none_or(residual_fits),
            "the residual has the wrong size"
        );
        columns
    }
}

impl<T: Operand> Piece<'_, T> {
    /// Packs all rows into strips in `room`.
    fn pack(&mut self, room: &mut [f32]) {
        self.strips = Some(room.as_ptr().cast());
        let left = &self.term.left;
        let rows = StripRows {
            first: left.pointer(0, self.words.start - self.term.words.start),
            stride: left.stride,
            depth_stride: left.depth_stride,
            rows: left.n,
            words: self.words.len(),
        };
        // SAFETY: `Sum::check` verified that these words are within every row.
        unsafe { strips::pack_all(rows, room) };
    }

    /// Input of a tile: the words that both this chunk and the panel store.
    fn tile_term(&self, row: usize, panel: usize) -> TileTerm<T> {
        let b = self.term.right.panel(panel);
        let start = self.words.start.max(b.first_word);
        let end = self.words.end.min(b.first_word + b.n_words).max(start);
        let (a, row_stride, word_stride) = match self.strips {
            None => (
                self.term.left.pointer(row, start - self.term.words.start),
                self.term.left.stride,
                T::DEPTHS * self.term.left.depth_stride,
            ),
            Some(strips) => {
                // Elements per word of a strip: all its lines.
                let lines = ROWS * T::strip_lines() * T::DEPTHS;
                let word = row / ROWS * self.words.len() + start - self.words.start;
                (strips.wrapping_add(word * lines), T::DEPTHS, lines)
            }
        };
        TileTerm {
            a,
            row_stride,
            word_stride,
            b: b.words.wrapping_add((start - b.first_word) * b.layout.line),
            layout: b.layout,
            words: end - start,
        }
    }
}

/// Source of the rows of a product.
pub(crate) trait RowSource<T>: Sync {
    /// Number of rows of `width` elements.
    fn len(&self, width: usize) -> usize;

    /// Calls `work` with the elements `run`; the rows are stored consecutively.
    fn with_numbers<R>(&self, run: Range<usize>, work: impl FnOnce(&[T]) -> R) -> R;
}

impl<T: Operand> RowSource<T> for [T] {
    fn len(&self, width: usize) -> usize {
        <[T]>::len(self).checked_div(width).unwrap_or(0)
    }

    fn with_numbers<R>(&self, run: Range<usize>, work: impl FnOnce(&[T]) -> R) -> R {
        work(&self[run])
    }
}

/// Multiplies rows `[n, depth]` with panels and adds a bias `[columns]` and a residual `[n,
/// columns]`.
pub(crate) fn rows_times_panels<T: Operand, O: Operand>(
    rows: &(impl RowSource<T> + ?Sized),
    panels: &Panels<T>,
    bias: Option<&[f32]>,
    residual: Option<&[f32]>,
) -> Buffer<O> {
    let (depth, columns) = (panels.depth(), panels.columns());
    let n = rows.len(depth);
    // SAFETY: the sums replace every element.
    unsafe {
        Buffer::filled(n * columns, |to| {
            let to = Shared::new(to);
            for_row_blocks::<T, O>(n, depth, |block, spread| {
                let range = block.start * columns..block.end * columns;
                rows.with_numbers(block.start * depth..block.end * depth, |rows| {
                    let (rows, stride) = pad_rows_to_words(rows, depth);
                    Sum {
                        terms: &[Term::new(Rows::new(&rows, stride, 0), panels)],
                        panels: Panelled::All,
                        bias,
                        residual: residual.map(|residual| &residual[range.clone()]),
                        output: Output::new(to.slice(range.start, range.len()), columns),
                    }
                    .run(spread);
                });
            });
        })
    }
}

/// Calls `work` with each block of rows and the distribution of its sum.
///
/// Many rows are split into blocks of about equal size, one thread each; few rows are a single
/// block, whose panels the threads split. `T` and `O` are the element types of operands and output.
pub(crate) fn for_row_blocks<T: Operand, O: Operand>(
    n: usize,
    depth: usize,
    work: impl Fn(Range<usize>, Spread) + Sync,
) {
    if n <= FEW_ROWS {
        work(0..n, Spread::Panels);
        return;
    }
    let threads = rayon::current_num_threads();
    let strips = n.div_ceil(ROWS);
    let blocks = n
        .div_ceil(block_rows::<T, O>(depth))
        .next_multiple_of(threads)
        .min(strips);
    (0..blocks).into_par_iter().for_each(|block| {
        let start = strips * block / blocks * ROWS;
        let end = (strips * (block + 1) / blocks * ROWS).min(n);
        work(start..end, Spread::OneThread);
    });
}

fn deep_words<T: Operand>() -> usize {
    if T::widens() {
        DEEP_WIDENED
    } else {
        DEEP_WORDS
    }
}

/// Rows of A with `depth` elements that fit in the cache.
fn block_rows<T: Operand, O: Operand>(depth: usize) -> usize {
    if T::reads_in_place() {
        return ROWS_IN_PLACE;
    }
    let is_chunked = O::DTYPE == DType::F32 || depth >= deep_words::<T>() * T::DEPTHS;
    let at_a_time = if is_chunked {
        depth.min(CHUNK_WORDS * T::DEPTHS)
    } else {
        depth
    };
    let bytes = size_of::<f32>() * T::strip_lines() / T::DEPTHS;
    let rows = BLOCK_BYTES / bytes / at_a_time.max(1);
    rows.clamp(ROWS, 30 * ROWS) / ROWS * ROWS
}
