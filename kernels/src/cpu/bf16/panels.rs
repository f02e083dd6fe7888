//! The right operand of a product, packed: panels of 32 columns, one line for two depths.
//!
//! A panel may leave out depths in which all of its columns are zero, as in the block-diagonal
//! second factor of stacked adapters.

use std::ops::Range;

use burn::tensor::bf16;
use rayon::prelude::*;

/// Columns of a panel.
pub(crate) const COLUMNS: usize = 32;

/// The words of one line: for each column a pair of depths, the lower one in the low half.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(128))]
struct Line([u32; COLUMNS]);

/// Where the lines of one panel lie.
#[derive(Debug, Clone, Copy)]
struct Span {
    line: usize,
    first_pair: usize,
    pairs: usize,
}

/// A packed matrix `[depth, columns]`.
#[derive(Debug)]
pub(crate) struct Panels {
    lines: Vec<Line>,
    spans: Vec<Span>,
    depth: usize,
    columns: usize,
}

/// The lines of one panel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Panel {
    /// [`COLUMNS`] words a line; columns that do not exist are zero.
    pub(crate) words: *const u32,
    /// First pair of depths that the panel holds.
    pub(crate) first_pair: usize,
    /// Number of lines.
    pub(crate) pairs: usize,
}

fn pair(low: bf16, high: bf16) -> u32 {
    u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16
}

impl Panels {
    /// Packs the transpose of rows `[columns, depth]`: of a weight, for `x Wᵀ`.
    pub(crate) fn of_rows(rows: &[bf16], [columns, depth]: [usize; 2]) -> Self {
        assert_eq!(rows.len(), columns * depth, "rows of the shape");
        let mut panels = Self::whole(depth, columns);
        panels.fill(|column, pairs, line| {
            let row = &rows[column * depth..][..depth];
            for (line, p) in line.zip(pairs) {
                let high = row.get(2 * p + 1).copied().unwrap_or(bf16::ZERO);
                *line = pair(row[2 * p], high);
            }
        });
        panels
    }

    /// Packs `[depth, columns]` as it lies: a weight, for `dy W`.
    pub(crate) fn of_matrix(matrix: &[bf16], [depth, columns]: [usize; 2]) -> Self {
        assert_eq!(matrix.len(), columns * depth, "a matrix of the shape");
        Self::from_elements([depth, columns], |p, column| {
            if p < depth {
                matrix[p * columns + column]
            } else {
                bf16::ZERO
            }
        })
    }

    /// Packs `[depth, columns]` given element by element.
    pub(crate) fn from_elements(
        [depth, columns]: [usize; 2],
        element: impl Fn(usize, usize) -> bf16 + Sync,
    ) -> Self {
        Self::of_blocks([depth, columns], |_| 0..depth, element)
    }

    /// The same, of which each column holds the depths `depths(column)` alone.
    pub(crate) fn of_blocks(
        [depth, columns]: [usize; 2],
        depths: impl Fn(usize) -> Range<usize>,
        element: impl Fn(usize, usize) -> bf16 + Sync,
    ) -> Self {
        let mut line = 0;
        let spans = (0..columns.div_ceil(COLUMNS))
            .map(|panel| {
                let held = (panel * COLUMNS..columns.min((panel + 1) * COLUMNS))
                    .map(&depths)
                    .filter(|depths| !depths.is_empty())
                    .reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
                    .unwrap_or(0..0);
                let first_pair = held.start / 2;
                let span = Span {
                    line,
                    first_pair,
                    pairs: held.end.div_ceil(2) - first_pair,
                };
                line += span.pairs;
                span
            })
            .collect();
        let mut panels = Self {
            lines: vec![Line([0; COLUMNS]); line],
            spans,
            depth,
            columns,
        };
        panels.fill(|column, pairs, line| {
            for (line, p) in line.zip(pairs) {
                let high = (2 * p + 1 < depth).then(|| element(2 * p + 1, column));
                *line = pair(element(2 * p, column), high.unwrap_or(bf16::ZERO));
            }
        });
        panels
    }

    fn whole(depth: usize, columns: usize) -> Self {
        let pairs = depth.div_ceil(2);
        let spans: Vec<Span> = (0..columns.div_ceil(COLUMNS))
            .map(|panel| Span {
                line: panel * pairs,
                first_pair: 0,
                pairs,
            })
            .collect();
        Self {
            lines: vec![Line([0; COLUMNS]); spans.len() * pairs],
            spans,
            depth,
            columns,
        }
    }

    /// Calls `write` with each column, its pairs of depths and the words for them.
    fn fill(
        &mut self,
        write: impl Fn(usize, Range<usize>, &mut dyn Iterator<Item = &mut u32>) + Sync,
    ) {
        let columns = self.columns;
        let mut rest = self.lines.as_mut_slice();
        let mut parts = Vec::with_capacity(self.spans.len());
        for span in &self.spans {
            let (lines, after) = rest.split_at_mut(span.pairs);
            parts.push((span.first_pair, lines));
            rest = after;
        }
        parts
            .into_par_iter()
            .enumerate()
            .for_each(|(panel, (first_pair, lines))| {
                let first = panel * COLUMNS;
                for column in first..columns.min(first + COLUMNS) {
                    let pairs = first_pair..first_pair + lines.len();
                    let mut words = lines.iter_mut().map(|line| &mut line.0[column - first]);
                    write(column, pairs, &mut words);
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
        let lines = &self.lines[span.line..span.line + span.pairs];
        Panel {
            words: lines.as_ptr().cast(),
            first_pair: span.first_pair,
            pairs: span.pairs,
        }
    }

    /// Elements of column `column`, in order of depth, to `to`.
    ///
    /// # Panics
    ///
    /// If `to` is shorter than the depth, or there is no such column.
    pub(crate) fn read_column(&self, column: usize, to: &mut [bf16]) {
        let span = self.spans[column / COLUMNS];
        let to = &mut to[..self.depth];
        to.fill(bf16::ZERO);
        let lines = &self.lines[span.line..span.line + span.pairs];
        for (to, line) in to[2 * span.first_pair..].chunks_mut(2).zip(lines) {
            let word = line.0[column % COLUMNS];
            for (to, half) in to.iter_mut().zip([word as u16, (word >> 16) as u16]) {
                *to = bf16::from_bits(half);
            }
        }
    }

    /// Bytes of the packed words.
    pub(crate) fn bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }
}
