//! The packed right operand of a product: panels of 32 columns, with a line of words per depth or
//! pair of depths.
//!
//! A panel may omit depths in which all of its columns are zero, as in the block-diagonal second
//! factor of stacked adapters.

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
use crate::cpu::weight_arena::ArenaArray;

/// Columns per panel.
pub(crate) const COLUMNS: usize = 32;
/// Columns per half panel.
pub(crate) const HALF: usize = COLUMNS / 2;

/// The words of half a line, one per column: one cache line. Their layout is [`PanelLayout`].
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct HalfLine([u32; HALF]);

const EMPTY: HalfLine = HalfLine([0; HALF]);

/// Memory of packed lines: permanent, or for one product.
#[derive(Debug)]
enum Lines {
    /// Permanent, for frozen weights.
    Owned(ArenaArray<HalfLine>),
    /// Borrowed from the pool, for operands that change each step.
    Lent(Buffer<HalfLine>),
}

impl Deref for Lines {
    type Target = [HalfLine];

    fn deref(&self) -> &[HalfLine] {
        match self {
            Self::Owned(lines) => lines,
            Self::Lent(lines) => lines,
        }
    }
}

impl DerefMut for Lines {
    fn deref_mut(&mut self) -> &mut [HalfLine] {
        match self {
            Self::Owned(lines) => lines,
            Self::Lent(lines) => lines,
        }
    }
}

/// Location of the lines of one panel.
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
    /// Number of the first panel; not 0 if these are only some panels of the matrix.
    first_panel: usize,
    depth: usize,
    columns: usize,
    operand: PhantomData<T>,
}

/// The lines of one panel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Panel {
    /// The words; missing columns are zero.
    pub(crate) words: *const u32,
    pub(crate) layout: PanelLayout,
    /// Index along the depth of the first word that the panel stores.
    pub(crate) first_word: usize,
    /// Number of lines.
    pub(crate) n_words: usize,
}

/// Word `p` of a column with `depth` elements.
fn pack_column_word<T: Operand>(p: usize, depth: usize, element: impl Fn(usize) -> T) -> u32 {
    T::pack_word(|i| match p * T::DEPTHS + i {
        p if p < depth => element(p),
        _ => T::ZERO,
    })
}

/// Packs the elements of a line's first and last depth into words; both are the same if a word has
/// a single depth.
#[inline(always)]
fn fill_line<T: Operand>(line: &mut [u32; COLUMNS], low: &[T], high: &[T]) {
    for ((to, &low), &high) in line.iter_mut().zip(low).zip(high) {
        *to = T::pack_word(|i| if i == 0 { low } else { high });
    }
}

for_each_isa! {
    /// Packs the lines of one panel from depths that are `stride` apart.
    fn fill_lines[T: Operand](
        lines: &mut [MaybeUninit<HalfLine>],
        matrix: &[T],
        stride: usize,
        depth: usize,
        held: Range<usize>,
    ) {
        let words = lines.len() / 2;
        let layout = PanelLayout::new::<T>(words);
        for p in 0..words {
            let mut line = [0; COLUMNS];
            let first = p * T::DEPTHS * stride + held.start;
            let last = first + (T::DEPTHS - 1) * stride;
            if (p + 1) * T::DEPTHS > depth {
                for (to, column) in line.iter_mut().zip(held.clone()) {
                    *to = pack_column_word(p, depth, |p| matrix[p * stride + column]);
                }
            } else if held.len() == COLUMNS {
                // With a column count known at compile time, the loop becomes whole registers.
                fill_line(&mut line, &matrix[first..][..COLUMNS], &matrix[last..][..COLUMNS]);
            } else {
                let n = held.len();
                fill_line(&mut line, &matrix[first..][..n], &matrix[last..][..n]);
            }
            for (half, words) in line.as_chunks::<HALF>().0.iter().enumerate() {
                lines[layout.offset(p, half * HALF) / HALF].write(HalfLine(*words));
            }
        }
    }
}

/// Writes 16 columns of a panel, starting at `column`, from the same number of rows.
///
/// # Safety
///
/// Every row has the depths of all words, contiguous.
unsafe fn transpose_half<T: Operand>(rows: StripRows<T>, lines: &mut [HalfLine], column: usize) {
    let layout = PanelLayout::new::<T>(lines.len() / 2);
    assert!(
        lines.len() >= 2 * rows.words && [0, HALF].contains(&column) && rows.rows <= HALF,
        "the panel's lines do not fit in the memory"
    );
    let first = lines.as_mut_ptr().cast::<f32>();
    let (to, line_stride) = (first.wrapping_add(layout.offset(0, column)), layout.line);
    // SAFETY: the CPU feature was detected; the size was checked, and the rows are guaranteed by
    // the caller.
    let n_done = match Isa::detect() {
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
    for i in n_done..rows.rows {
        let row = rows.first.wrapping_add(i * rows.stride);
        for p in 0..rows.words {
            let line = &mut lines[layout.offset(p, column) / HALF];
            // SAFETY: guaranteed by the caller.
            line.0[i] = T::pack_word(|depth| unsafe { *row.add(p * T::DEPTHS + depth) });
        }
    }
}

impl<T: Operand> Panels<T> {
    /// Packs the transpose of rows `[columns, depth]`, such as a weight for `x Wᵀ`.
    pub(crate) fn pack_rows(rows: &[T], [columns, depth]: [usize; 2]) -> Self {
        assert_eq!(rows.len(), columns * depth, "rows do not match the shape");
        let lines = ArenaArray::repeated(EMPTY, Self::whole_half_lines([depth, columns]));
        Self::pack_row_starts(rows, [columns, depth], depth, Lines::Owned(lines))
    }

    /// Like [`Self::pack_rows`], in borrowed memory.
    pub(crate) fn pack_rows_on_loan(rows: &[T], [columns, depth]: [usize; 2]) -> Self {
        assert_eq!(rows.len(), columns * depth, "rows do not match the shape");
        let lines = Buffer::repeated(EMPTY, Self::whole_half_lines([depth, columns]));
        Self::pack_row_starts(rows, [columns, depth], depth, Lines::Lent(lines))
    }

    /// Like `pack_rows`, for rows that are `stride` apart; `lines` are zeros.
    fn pack_row_starts(
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
            "rows do not match the shape"
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
                // SAFETY: the rows are within the slice, each with `whole` words, and a panel has a
                // line for each word.
                unsafe { transpose_half(rows, lines, column) };
            }
            if whole < words {
                let layout = PanelLayout::new::<T>(words);
                for column in panel * COLUMNS..columns.min((panel + 1) * COLUMNS) {
                    let line = &mut lines[layout.offset(whole, column % COLUMNS) / HALF];
                    line.0[column % HALF] =
                        pack_column_word(whole, depth, |p| rows[column * stride + p]);
                }
            }
        });
        panels
    }

    /// Packs `[depth, columns]` without transposing, in borrowed memory.
    pub(crate) fn pack_matrix(matrix: &[T], [depth, columns]: [usize; 2]) -> Self {
        assert_eq!(
            matrix.len(),
            columns * depth,
            "the matrix does not match the shape"
        );
        Self::from_lines(matrix, [depth, columns], columns)
    }

    /// Like `pack_matrix`, for depths that are `stride` apart.
    fn from_lines(matrix: &[T], [depth, columns]: [usize; 2], stride: usize) -> Self {
        let words = depth.div_ceil(T::DEPTHS);
        // SAFETY: every line of every panel is written.
        let lines = unsafe {
            Buffer::filled(Self::whole_half_lines([depth, columns]), |lines| {
                let lines = lines.par_chunks_mut((2 * words).max(1)).enumerate();
                lines.for_each(|(panel, lines)| {
                    let columns_here = panel * COLUMNS..columns.min((panel + 1) * COLUMNS);
                    fill_lines(lines, matrix, stride, depth, columns_here);
                });
            })
        };
        Self::with_lines(Lines::Lent(lines), [depth, columns])
    }

    /// Packs `[depth, columns]` from a function of its elements.
    pub(crate) fn from_elements(
        [depth, columns]: [usize; 2],
        element: impl Fn(usize, usize) -> T + Sync,
    ) -> Self {
        Self::pack_blocks([depth, columns], |_| 0..depth, element)
    }

    /// Like `from_elements`, storing only the depths `depths(column)` of each column.
    pub(crate) fn pack_blocks(
        [depth, columns]: [usize; 2],
        depths: impl Fn(usize) -> Range<usize>,
        element: impl Fn(usize, usize) -> T + Sync,
    ) -> Self {
        let mut line = 0;
        let spans = (0..columns.div_ceil(COLUMNS))
            .map(|panel| {
                let columns_here = (panel * COLUMNS..columns.min((panel + 1) * COLUMNS))
                    .map(&depths)
                    .filter(|depths| !depths.is_empty())
                    .reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
                    .unwrap_or(0..0);
                let first_word = columns_here.start / T::DEPTHS;
                let span = Span {
                    line,
                    first_word,
                    words: columns_here.end.div_ceil(T::DEPTHS) - first_word,
                };
                line += span.words;
                span
            })
            .collect();
        let mut panels = Self {
            lines: Lines::Lent(Buffer::repeated(EMPTY, 2 * line)),
            spans,
            first_panel: 0,
            depth,
            columns,
            operand: PhantomData,
        };
        panels.fill(|column, words, line| {
            for (line, p) in line.zip(words) {
                *line = pack_column_word(p, depth, |p| element(p, column));
            }
        });
        panels
    }

    /// Half lines of panels that each store all depths.
    fn whole_half_lines([depth, columns]: [usize; 2]) -> usize {
        2 * columns.div_ceil(COLUMNS) * depth.div_ceil(T::DEPTHS)
    }

    /// Panels that each store all depths.
    fn with_lines(lines: Lines, shape: [usize; 2]) -> Self {
        let panels = 0..shape[1].div_ceil(COLUMNS);
        Self::some_with_lines(lines, shape, panels)
    }

    /// Some panels of a matrix, each with all depths.
    fn some_with_lines(lines: Lines, [depth, columns]: [usize; 2], panels: Range<usize>) -> Self {
        let words = depth.div_ceil(T::DEPTHS);
        let spans = (0..panels.len()).map(|panel| Span {
            line: panel * words,
            first_word: 0,
            words,
        });
        Self {
            lines,
            spans: spans.collect(),
            first_panel: panels.start,
            depth,
            columns,
            operand: PhantomData,
        }
    }

    /// Some panels of a matrix `[depth, columns]`, each with all depths, in borrowed memory. `fill`
    /// writes `group` consecutive panels at a time, from the first word of the first one. All threads
    /// call it if `spread` is set.
    ///
    /// # Safety
    ///
    /// `fill` writes all words of its panels.
    pub(crate) unsafe fn from_groups(
        [depth, columns]: [usize; 2],
        panels: Range<usize>,
        group: usize,
        spread: bool,
        fill: impl Fn(Range<usize>, PanelWordsMut) + Sync,
    ) -> Self {
        let words = depth.div_ceil(T::DEPTHS);
        let layout = PanelLayout::new::<T>(words);
        let fill = |(i, lines): (usize, &mut [MaybeUninit<HalfLine>])| {
            let first = panels.start + i * group;
            let words = lines.as_mut_ptr().cast();
            let group = first..panels.end.min(first + group);
            fill(group, PanelWordsMut { words, layout });
        };
        let half_lines = (2 * words * group).max(1);
        // SAFETY: guaranteed by the caller.
        let lines = unsafe {
            Buffer::filled(2 * words * panels.len(), |lines| {
                if spread {
                    let groups = lines.par_chunks_mut(half_lines).enumerate();
                    groups.for_each(fill);
                } else {
                    lines.chunks_mut(half_lines).enumerate().for_each(fill);
                }
            })
        };
        Self::some_with_lines(Lines::Lent(lines), [depth, columns], panels)
    }

    /// The transposed matrix: panels for `dy W` from panels for `x Wᵀ`, in borrowed memory.
    ///
    /// Requires panels that store all depths, as weights do.
    pub(crate) fn transposed(&self) -> Self {
        let [depth, columns] = [self.columns, self.depth];
        if !(depth.is_multiple_of(COLUMNS) && columns.is_multiple_of(COLUMNS)) {
            return self.transposed_by_columns();
        }
        // A block has the same number of depths and columns.
        let block = COLUMNS / T::DEPTHS;
        let words = depth / T::DEPTHS;
        // SAFETY: the blocks of all panels of `self` are written, which covers every line.
        let lines = unsafe {
            Buffer::filled(Self::whole_half_lines([depth, columns]), |lines| {
                let lines = lines.par_chunks_mut((2 * words).max(1)).enumerate();
                lines.for_each(|(panel, lines)| {
                    let (to, layout) = (
                        lines.as_mut_ptr().cast::<u32>(),
                        PanelLayout::new::<T>(words),
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
        Self::pack_matrix(&values, shape)
    }

    /// Calls `write` with each column, the word indices of its depth, and the target.
    fn fill(
        &mut self,
        write: impl Fn(usize, Range<usize>, &mut dyn Iterator<Item = &mut u32>) + Sync,
    ) {
        let columns = self.columns;
        let mut remaining = &mut *self.lines;
        let mut parts = Vec::with_capacity(self.spans.len());
        for span in &self.spans {
            let (lines, after) = remaining.split_at_mut(2 * span.words);
            parts.push((span.first_word, lines));
            remaining = after;
        }
        parts
            .into_par_iter()
            .enumerate()
            .for_each(|(panel, (first_word, lines))| {
                let first = panel * COLUMNS;
                let n_words = lines.len() / 2;
                let layout = PanelLayout::new::<T>(n_words);
                for column in first..columns.min(first + COLUMNS) {
                    let words = first_word..first_word + n_words;
                    let half = layout.offset(0, (column - first) / HALF * HALF) / HALF;
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
        let span = self.spans[panel - self.first_panel];
        Panel {
            words: self.half_lines(span).as_ptr().cast(),
            layout: PanelLayout::new::<T>(span.words),
            first_word: span.first_word,
            n_words: span.words,
        }
    }

    fn half_lines(&self, span: Span) -> &[HalfLine] {
        &self.lines[2 * span.line..2 * (span.line + span.words)]
    }

    /// Writes the elements of column `column` to `to`, in order of depth.
    ///
    /// # Panics
    ///
    /// If `to` is shorter than the depth, or the column does not exist.
    pub(crate) fn read_column(&self, column: usize, to: &mut [T]) {
        let span = self.spans[column / COLUMNS - self.first_panel];
        let to = &mut to[..self.depth];
        to.fill(T::ZERO);
        let (lines, layout) = (self.half_lines(span), PanelLayout::new::<T>(span.words));
        let words = &mut to[T::DEPTHS * span.first_word..];
        for (line, to) in words.chunks_mut(T::DEPTHS).enumerate().take(span.words) {
            let half_line = &lines[layout.offset(line, column % COLUMNS) / HALF];
            for (i, to) in to.iter_mut().enumerate() {
                *to = T::unpack_word(half_line.0[column % HALF], i);
            }
        }
    }

    /// Bytes of the packed words.
    pub(crate) fn bytes(&self) -> usize {
        self.lines.len() * size_of::<HalfLine>()
    }
}

impl Panels<f32> {
    /// Packs a matrix in either layout.
    ///
    /// # Panics
    ///
    /// If neither its rows nor its columns are contiguous; no constructor of [`Matrix`] creates
    /// such a view.
    pub(crate) fn from_matrix(matrix: Matrix<'_>) -> Self {
        let [depth, columns] = [matrix.rows(), matrix.columns()];
        if matrix.column_stride() == 1 {
            return Self::from_lines(matrix.data(), [depth, columns], matrix.row_stride());
        }
        assert_eq!(
            matrix.row_stride(),
            1,
            "a matrix needs contiguous rows or columns"
        );
        let lines = Lines::Lent(Buffer::repeated(
            EMPTY,
            Self::whole_half_lines([depth, columns]),
        ));
        Self::pack_row_starts(
            matrix.data(),
            [columns, depth],
            matrix.column_stride(),
            lines,
        )
    }
}
