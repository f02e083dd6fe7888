//! The right operand of a product, packed: panels of 32 columns, a line of words for each depth
//! or pair of depths.
//!
//! A panel may leave out depths in which all of its columns are zero, as in the block-diagonal
//! second factor of stacked adapters.

use std::marker::PhantomData;
use std::ops::Range;

use rayon::prelude::*;

use super::operand::Operand;

/// Columns of a panel.
pub(crate) const COLUMNS: usize = 32;

/// The words of one line, one for each column.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(128))]
struct Line([u32; COLUMNS]);

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
    lines: Vec<Line>,
    spans: Vec<Span>,
    depth: usize,
    columns: usize,
    operand: PhantomData<T>,
}

/// The lines of one panel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Panel {
    /// [`COLUMNS`] words a line; columns that do not exist are zero.
    pub(crate) words: *const u32,
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

impl<T: Operand> Panels<T> {
    /// Packs the transpose of rows `[columns, depth]`: of a weight, for `x Wᵀ`.
    pub(crate) fn of_rows(rows: &[T], [columns, depth]: [usize; 2]) -> Self {
        assert_eq!(rows.len(), columns * depth, "rows of the shape");
        let mut panels = Self::whole(depth, columns);
        panels.fill(|column, words, line| {
            let row = &rows[column * depth..][..depth];
            for (line, p) in line.zip(words) {
                *line = word(p, depth, |p| row[p]);
            }
        });
        panels
    }

    /// Packs `[depth, columns]` as it lies: a weight, for `dy W`.
    pub(crate) fn of_matrix(matrix: &[T], [depth, columns]: [usize; 2]) -> Self {
        assert_eq!(matrix.len(), columns * depth, "a matrix of the shape");
        Self::from_elements([depth, columns], |p, column| matrix[p * columns + column])
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
            lines: vec![Line([0; COLUMNS]); line],
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

    fn whole(depth: usize, columns: usize) -> Self {
        let words = depth.div_ceil(T::DEPTHS);
        let spans: Vec<Span> = (0..columns.div_ceil(COLUMNS))
            .map(|panel| Span {
                line: panel * words,
                first_word: 0,
                words,
            })
            .collect();
        Self {
            lines: vec![Line([0; COLUMNS]); spans.len() * words],
            spans,
            depth,
            columns,
            operand: PhantomData,
        }
    }

    /// Calls `write` with each column, the words of its depth, and where they go.
    fn fill(
        &mut self,
        write: impl Fn(usize, Range<usize>, &mut dyn Iterator<Item = &mut u32>) + Sync,
    ) {
        let columns = self.columns;
        let mut rest = self.lines.as_mut_slice();
        let mut parts = Vec::with_capacity(self.spans.len());
        for span in &self.spans {
            let (lines, after) = rest.split_at_mut(span.words);
            parts.push((span.first_word, lines));
            rest = after;
        }
        parts
            .into_par_iter()
            .enumerate()
            .for_each(|(panel, (first_word, lines))| {
                let first = panel * COLUMNS;
                for column in first..columns.min(first + COLUMNS) {
                    let words = first_word..first_word + lines.len();
                    let mut line = lines.iter_mut().map(|line| &mut line.0[column - first]);
                    write(column, words, &mut line);
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
        let lines = &self.lines[span.line..span.line + span.words];
        Panel {
            words: lines.as_ptr().cast(),
            first_word: span.first_word,
            n_words: span.words,
        }
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
        let lines = &self.lines[span.line..span.line + span.words];
        let held = &mut to[T::DEPTHS * span.first_word..];
        for (to, line) in held.chunks_mut(T::DEPTHS).zip(lines) {
            for (i, to) in to.iter_mut().enumerate() {
                *to = T::of_word(line.0[column % COLUMNS], i);
            }
        }
    }

    /// Bytes of the packed words.
    pub(crate) fn bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }
}
