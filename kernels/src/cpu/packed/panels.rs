//! The right operand of a product, packed: panels of 32 columns, a line of words for each depth
//! or pair of depths.
//!
//! A panel may leave out depths in which all of its columns are zero, as in the block-diagonal
//! second factor of stacked adapters.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut, Range};

use rayon::prelude::*;

use super::layout::{PanelLayout, PanelWords, PanelWordsMut};
use super::operand::Operand;
use super::strips::StripRows;
#[cfg(target_arch = "x86_64")]
use super::strips::avx512;
use crate::cpu::isa::{Isa, for_each_isa};
#[cfg(target_arch = "x86_64")]
use crate::cpu::lanes_avx2;
use crate::cpu::matrix::Matrix;
use crate::cpu::pool::Buffer;
use crate::cpu::weight_arena::Kept;

/// Columns of a panel.
pub(crate) const COLUMNS: usize = 32;
/// Columns of half of one.
pub(crate) const HALF: usize = COLUMNS / 2;

/// The words of half a line, one for each column: a line of the cache. [`PanelLayout`] says where it lies.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct HalfLine([u32; HALF]);

const EMPTY: HalfLine = HalfLine([0; HALF]);

/// Lines that stay, or that are needed for one product.
#[derive(Debug)]
enum Lines {
    /// Of frozen weights.
    Kept(Kept<HalfLine>),
    /// Of what changes from step to step, in memory on loan.
    Lent(Buffer<HalfLine>),
}

impl Deref for Lines {
    type Target = [HalfLine];

    fn deref(&self) -> &[HalfLine] {
        match self {
            Self::Kept(lines) => lines,
            Self::Lent(lines) => lines,
        }
    }
}

impl DerefMut for Lines {
    fn deref_mut(&mut self) -> &mut [HalfLine] {
        match self {
            Self::Kept(lines) => lines,
            Self::Lent(lines) => lines,
        }
    }
}

/// Where the lines of one panel lie.
#[derive(Debug, Clone, Copy)]
struct Span {
    line: usize,
    first_word: usize,
    words: usize,
}

/// A packed matrix `[depth, columns]`.
#[derive(Debug)]
pub(crate) struct Panels<T> {
    lines: Lines,
    spans: Vec<Span>,
    depth: usize,
    columns: usize,
    operand: PhantomData<T>,
}

/// The lines of one panel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Panel {
    /// Columns that do not exist are zero.
    pub(crate) words: *const u32,
    pub(crate) layout: PanelLayout,
    /// First word of the depth that the panel holds.
    pub(crate) first_word: usize,
    /// Number of lines.
    pub(crate) n_words: usize,
}

/// Word `p` of a column of `depth` numbers.
fn word<T: Operand>(p: usize, depth: usize, at: impl Fn(usize) -> T) -> u32 {
    T::word(|i| match p * T::DEPTHS + i {
        p if p < depth => at(p),
        _ => T::ZERO,
    })
}

/// Words of the first and the last depth of a line, which are the same where a word holds one.
#[inline(always)]
fn fill_line<T: Operand>(line: &mut [u32; COLUMNS], low: &[T], high: &[T]) {
    for ((to, &low), &high) in line.iter_mut().zip(low).zip(high) {
        *to = T::word(|i| if i == 0 { low } else { high });
    }
}

for_each_isa! {
    /// Lines of one panel, from depths that begin `stride` apart.
    fn fill_lines[T: Operand](
        lines: &mut [MaybeUninit<HalfLine>],
        matrix: &[T],
        stride: usize,
        depth: usize,
        held: Range<usize>,
    ) {
        let words = lines.len() / 2;
        let layout = PanelLayout::of::<T>(words);
        for p in 0..words {
            let mut line = [0; COLUMNS];
            let first = p * T::DEPTHS * stride + held.start;
            let last = first + (T::DEPTHS - 1) * stride;
            if (p + 1) * T::DEPTHS > depth {
                for (to, column) in line.iter_mut().zip(held.clone()) {
                    *to = word(p, depth, |p| matrix[p * stride + column]);
                }
            } else if held.len() == COLUMNS {
                // As many columns as the compiler knows become whole registers.
                fill_line(&mut line, &matrix[first..][..COLUMNS], &matrix[last..][..COLUMNS]);
            } else {
                let n = held.len();
                fill_line(&mut line, &matrix[first..][..n], &matrix[last..][..n]);
            }
            for (half, words) in line.as_chunks::<HALF>().0.iter().enumerate() {
                lines[layout.at(p, half * HALF) / HALF].write(HalfLine(*words));
            }
        }
    }
}

/// Writes 16 columns of a panel, from `column` on, from as many rows.
///
/// # Safety
///
/// Every row has the depths of its words, side by side.
unsafe fn transpose_half<T: Operand>(rows: StripRows<T>, lines: &mut [HalfLine], column: usize) {
    let layout = PanelLayout::of::<T>(lines.len() / 2);
    assert!(
        lines.len() >= 2 * rows.words && [0, HALF].contains(&column) && rows.rows <= HALF,
        "lines of a panel"
    );
    let first = lines.as_mut_ptr().cast::<f32>();
    let (to, line_stride) = (first.wrapping_add(layout.at(0, column)), layout.line);
    // SAFETY: detected; room was checked, rows are the caller's promise.
    let done = match Isa::detect() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => return unsafe { avx512::transpose(rows, to, line_stride, HALF) },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe {
            let stride = rows.stride * size_of::<T>();
            let shape = [rows.rows, rows.words];
            lanes_avx2::transpose(rows.first.cast(), stride, shape, to, line_stride)
        },
        Isa::Portable => {
            let _ = (to, line_stride);
            0
        }
    };
    for i in done..rows.rows {
        let row = rows.first.wrapping_add(i * rows.stride);
        for p in 0..rows.words {
            let line = &mut lines[layout.at(p, column) / HALF];
            // SAFETY: as the caller promises.
            line.0[i] = T::word(|depth| unsafe { *row.add(p * T::DEPTHS + depth) });
        }
    }
}

impl<T: Operand> Panels<T> {
    /// Packs the transpose of rows `[columns, depth]`: of a weight, for `x Wᵀ`.
    pub(crate) fn of_rows(rows: &[T], [columns, depth]: [usize; 2]) -> Self {
        assert_eq!(rows.len(), columns * depth, "rows of the shape");
        let lines = Kept::repeated(EMPTY, Self::whole_half_lines([depth, columns]));
        Self::of_row_starts(rows, [columns, depth], depth, Lines::Kept(lines))
    }

    /// The same with rows that begin `stride` apart, in lines of zeros.
    fn of_row_starts(
        rows: &[T],
        [columns, depth]: [usize; 2],
        stride: usize,
        lines: Lines,
    ) -> Self {
        let mut panels = Self::with_lines(lines, [depth, columns]);
        let whole = depth / T::DEPTHS;
        let words = depth.div_ceil(T::DEPTHS);
        let last = columns.max(1) - 1;
        assert!(
            columns == 0 || last * stride + depth <= rows.len(),
            "rows of the shape"
        );
        let lines = panels.lines.par_chunks_mut((2 * words).max(1)).enumerate();
        lines.for_each(|(panel, lines)| {
            for column in [0, HALF] {
                let first = panel * COLUMNS + column;
                let rows = StripRows {
                    first: rows.as_ptr().wrapping_add(first * stride),
                    stride,
                    depth_stride: 1,
                    rows: HALF.min(columns.saturating_sub(first)),
                    words: whole,
                };
                // SAFETY: the rows lie within the slice, each with `whole` words; a panel has a
                // line for each of them.
                unsafe { transpose_half(rows, lines, column) };
            }
            if whole < words {
                let layout = PanelLayout::of::<T>(words);
                for column in panel * COLUMNS..columns.min((panel + 1) * COLUMNS) {
                    let line = &mut lines[layout.at(whole, column % COLUMNS) / HALF];
                    line.0[column % HALF] = word(whole, depth, |p| rows[column * stride + p]);
                }
            }
        });
        panels
    }

    /// Packs `[depth, columns]` as it lies, in memory on loan.
    pub(crate) fn of_matrix(matrix: &[T], [depth, columns]: [usize; 2]) -> Self {
        assert_eq!(matrix.len(), columns * depth, "a matrix of the shape");
        Self::of_lines(matrix, [depth, columns], columns)
    }

    /// The same with depths that begin `stride` apart.
    fn of_lines(matrix: &[T], [depth, columns]: [usize; 2], stride: usize) -> Self {
        let words = depth.div_ceil(T::DEPTHS);
        // SAFETY: every line of every panel is written.
        let lines = unsafe {
            Buffer::filled(Self::whole_half_lines([depth, columns]), |lines| {
                let lines = lines.par_chunks_mut((2 * words).max(1)).enumerate();
                lines.for_each(|(panel, lines)| {
                    let held = panel * COLUMNS..columns.min((panel + 1) * COLUMNS);
                    fill_lines(lines, matrix, stride, depth, held);
                });
            })
        };
        Self::with_lines(Lines::Lent(lines), [depth, columns])
    }

    /// Packs `[depth, columns]` given element by element.
    pub(crate) fn from_elements(
        [depth, columns]: [usize; 2],
        element: impl Fn(usize, usize) -> T + Sync,
    ) -> Self {
        Self::of_blocks([depth, columns], |_| 0..depth, element)
    }

    /// The same, of which each column holds the depths `depths(column)` alone.
    pub(crate) fn of_blocks(
        [depth, columns]: [usize; 2],
        depths: impl Fn(usize) -> Range<usize>,
        element: impl Fn(usize, usize) -> T + Sync,
    ) -> Self {
        let mut line = 0;
        let spans = (0..columns.div_ceil(COLUMNS))
            .map(|panel| {
                let held = (panel * COLUMNS..columns.min((panel + 1) * COLUMNS))
                    .map(&depths)
                    .filter(|depths| !depths.is_empty())
                    .reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
                    .unwrap_or(0..0);
                let first_word = held.start / T::DEPTHS;
                let span = Span {
                    line,
                    first_word,
                    words: held.end.div_ceil(T::DEPTHS) - first_word,
                };
                line += span.words;
                span
            })
            .collect();
        let mut panels = Self {
            lines: Lines::Lent(Buffer::repeated(EMPTY, 2 * line)),
            spans,
            depth,
            columns,
            operand: PhantomData,
        };
        panels.fill(|column, words, line| {
            for (line, p) in line.zip(words) {
                *line = word(p, depth, |p| element(p, column));
            }
        });
        panels
    }

    /// Halves of the lines of panels that each hold all depths.
    fn whole_half_lines([depth, columns]: [usize; 2]) -> usize {
        2 * columns.div_ceil(COLUMNS) * depth.div_ceil(T::DEPTHS)
    }

    /// Panels that each hold all depths.
    fn with_lines(lines: Lines, [depth, columns]: [usize; 2]) -> Self {
        let words = depth.div_ceil(T::DEPTHS);
        let spans = (0..columns.div_ceil(COLUMNS)).map(|panel| Span {
            line: panel * words,
            first_word: 0,
            words,
        });
        Self {
            lines,
            spans: spans.collect(),
            depth,
            columns,
            operand: PhantomData,
        }
    }

    /// The transpose: of panels for `x Wᵀ` those for `dy W`, in memory on loan.
    ///
    /// Only panels that hold all depths are transposed: those of weights.
    pub(crate) fn transposed(&self) -> Self {
        let [depth, columns] = [self.columns, self.depth];
        if !(depth.is_multiple_of(COLUMNS) && columns.is_multiple_of(COLUMNS)) {
            return self.transposed_by_columns();
        }
        // A block is as many depths as a panel has columns.
        let block = COLUMNS / T::DEPTHS;
        let words = depth / T::DEPTHS;
        // SAFETY: the blocks of all panels of `self` are written, which is every line.
        let lines = unsafe {
            Buffer::filled(Self::whole_half_lines([depth, columns]), |lines| {
                let lines = lines.par_chunks_mut((2 * words).max(1)).enumerate();
                lines.for_each(|(panel, lines)| {
                    let (to, layout) = (
                        lines.as_mut_ptr().cast::<u32>(),
                        PanelLayout::of::<T>(words),
                    );
                    for source in 0..words / block {
                        let from = self.panel(source);
                        let first = from.words.add(panel * block * from.layout.line);
                        let to = to.add(source * block * layout.line);
                        T::transpose_block(
                            PanelWords {
                                words: first,
                                layout: from.layout,
                            },
                            PanelWordsMut { words: to, layout },
                        );
                    }
                });
            })
        };
        Self::with_lines(Lines::Lent(lines), [depth, columns])
    }

    fn transposed_by_columns(&self) -> Self {
        let shape = [self.columns, self.depth];
        let mut values = vec![T::ZERO; shape[0] * shape[1]];
        let rows = values.par_chunks_mut(shape[1].max(1)).enumerate();
        rows.for_each(|(row, values)| self.read_column(row, values));
        Self::of_matrix(&values, shape)
    }

    /// Calls `write` with each column, the words of its depth, and where they go.
    fn fill(
        &mut self,
        write: impl Fn(usize, Range<usize>, &mut dyn Iterator<Item = &mut u32>) + Sync,
    ) {
        let columns = self.columns;
        let mut rest = &mut *self.lines;
        let mut parts = Vec::with_capacity(self.spans.len());
        for span in &self.spans {
            let (lines, after) = rest.split_at_mut(2 * span.words);
            parts.push((span.first_word, lines));
            rest = after;
        }
        parts
            .into_par_iter()
            .enumerate()
            .for_each(|(panel, (first_word, lines))| {
                let first = panel * COLUMNS;
                let n_words = lines.len() / 2;
                let layout = PanelLayout::of::<T>(n_words);
                for column in first..columns.min(first + COLUMNS) {
                    let words = first_word..first_word + n_words;
                    let half = layout.at(0, (column - first) / HALF * HALF) / HALF;
                    let lines = lines.iter_mut().skip(half).step_by(layout.line / HALF);
                    let line = lines.map(|line| &mut line.0[column % HALF]);
                    write(column, words, &mut line.take(n_words));
                }
            });
    }

    /// Depth of the product.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Columns of the product.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Number of panels.
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// Panel `panel`.
    pub(crate) fn panel(&self, panel: usize) -> Panel {
        let span = self.spans[panel];
        Panel {
            words: self.half_lines(span).as_ptr().cast(),
            layout: PanelLayout::of::<T>(span.words),
            first_word: span.first_word,
            n_words: span.words,
        }
    }

    fn half_lines(&self, span: Span) -> &[HalfLine] {
        &self.lines[2 * span.line..2 * (span.line + span.words)]
    }

    /// Elements of column `column`, in order of depth, to `to`.
    ///
    /// # Panics
    ///
    /// If `to` is shorter than the depth, or there is no such column.
    pub(crate) fn read_column(&self, column: usize, to: &mut [T]) {
        let span = self.spans[column / COLUMNS];
        let to = &mut to[..self.depth];
        to.fill(T::ZERO);
        let (lines, layout) = (self.half_lines(span), PanelLayout::of::<T>(span.words));
        let held = &mut to[T::DEPTHS * span.first_word..];
        for (line, to) in held.chunks_mut(T::DEPTHS).enumerate().take(span.words) {
            let half_line = &lines[layout.at(line, column % COLUMNS) / HALF];
            for (i, to) in to.iter_mut().enumerate() {
                *to = T::of_word(half_line.0[column % HALF], i);
            }
        }
    }

    /// Bytes of the packed words.
    pub(crate) fn bytes(&self) -> usize {
        self.lines.len() * size_of::<HalfLine>()
    }
}

impl Panels<f32> {
    /// Packs a matrix, whichever way it lies.
    ///
    /// # Panics
    ///
    /// If neither its rows nor its columns are contiguous: no view is made so.
    pub(crate) fn of(matrix: Matrix<'_>) -> Self {
        let [depth, columns] = [matrix.rows(), matrix.columns()];
        if matrix.column_stride() == 1 {
            return Self::of_lines(matrix.data(), [depth, columns], matrix.row_stride());
        }
        assert_eq!(
            matrix.row_stride(),
            1,
            "rows or columns of a matrix are contiguous"
        );
        let lines = Lines::Lent(Buffer::repeated(
            EMPTY,
            Self::whole_half_lines([depth, columns]),
        ));
        Self::of_row_starts(
            matrix.data(),
            [columns, depth],
            matrix.column_stride(),
            lines,
        )
    }
}
