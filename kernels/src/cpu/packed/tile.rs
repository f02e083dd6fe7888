//! What a packed product is cut into: tiles of the result that fit the registers of one core.

use burn::tensor::bf16;

use super::layout::{PanelLayout, PanelWords};
use super::operand::Operand;
use super::panels::{COLUMNS, HALF};
use crate::cpu::isa::for_each_isa;
use crate::cpu::number::Number;

/// Most rows of a tile.
pub(crate) const ROWS: usize = 12;

/// Most products of one sum.
pub(crate) const TERMS: usize = 4;

/// One product of the sum that a tile holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileTerm<T> {
    /// Element `(0, 0)` of A at the first word of `b`.
    pub(crate) a: *const T,
    /// Elements from one row of A to the next.
    pub(crate) row_stride: usize,
    /// Elements of A from one word's depths to the next word's.
    pub(crate) word_stride: usize,
    /// `words` lines of [`COLUMNS`] words.
    pub(crate) b: *const u32,
    pub(crate) layout: PanelLayout,
    pub(crate) words: usize,
}

/// Where a tile goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TileOutput {
    F32(*mut f32),
    Bf16(*mut bf16),
}

/// One tile: `c[rows, columns] = residual + bias + Σ a b`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileJob<T> {
    /// The first `n_terms` count.
    pub(crate) terms: [TileTerm<T>; TERMS],
    pub(crate) n_terms: usize,
    /// At least 1, at most [`ROWS`].
    pub(crate) rows: usize,
    /// At least 1, at most [`COLUMNS`].
    pub(crate) columns: usize,
    /// One number a column, or null.
    pub(crate) bias: *const f32,
    /// Element `(0, 0)` of what is added, or null.
    pub(crate) residual: *const f32,
    pub(crate) residual_stride: usize,
    pub(crate) output: TileOutput,
    pub(crate) output_stride: usize,
}

impl<T> TileTerm<T> {
    /// A product of no depth.
    pub(crate) const NONE: Self = Self {
        a: std::ptr::null(),
        row_stride: 0,
        word_stride: 0,
        b: std::ptr::null(),
        layout: PanelLayout { line: 0, half: 0 },
        words: 0,
    };
}

#[cfg(target_arch = "x86_64")]
impl<T: Operand> TileTerm<T> {
    /// The words `words` alone.
    pub(crate) fn part(self, words: std::ops::Range<usize>) -> Self {
        Self {
            a: self.a.wrapping_add(words.start * self.word_stride),
            b: self.b.wrapping_add(words.start * self.layout.line),
            words: words.len(),
            ..self
        }
    }
}

impl<T> TileJob<T> {
    pub(crate) fn products(&self) -> &[TileTerm<T>] {
        &self.terms[..self.n_terms]
    }
}

for_each_isa! {
    /// A tile in plain loops. The pointers are as [`Operand::run_tiles`] demands.
    pub(crate) fn portable[T: Operand](job: &TileJob<T>) {
        let mut sums = [[0.0f32; COLUMNS]; ROWS];
        for term in job.products() {
            for p in 0..term.words {
                // SAFETY: `words` lines of the panel.
                let line = unsafe {
                    [0, HALF].map(|half| *term.b.add(term.layout.at(p, half)).cast::<[u32; HALF]>())
                };
                for (i, sum) in sums.iter_mut().enumerate().take(job.rows) {
                    let a = term.a.wrapping_add(i * term.row_stride + p * term.word_stride);
                    for (sum, &word) in sum.iter_mut().zip(line.as_flattened()) {
                        let mut products = 0.0;
                        for depth in 0..T::DEPTHS {
                            // SAFETY: rows of A hold all depths of each word.
                            let a = unsafe { *a.add(depth) };
                            products += a.widen() * T::of_word(word, depth).widen();
                        }
                        *sum += products;
                    }
                }
            }
        }
        for (i, sum) in sums.iter().enumerate().take(job.rows) {
            for (j, &value) in sum.iter().enumerate().take(job.columns) {
                let at = i * job.output_stride + j;
                // SAFETY: within the output, the residual and the bias.
                unsafe {
                    let mut value = value;
                    if !job.bias.is_null() {
                        value += *job.bias.add(j);
                    }
                    if !job.residual.is_null() {
                        value += *job.residual.add(i * job.residual_stride + j);
                    }
                    match job.output {
                        TileOutput::F32(to) => *to.add(at) = value,
                        TileOutput::Bf16(to) => *to.add(at) = bf16::narrow(value),
                    }
                }
            }
        }
    }
}

/// What tiles ask memory for while they read the same lines of a panel: each its share of the lines
/// behind them, which are read next. One tile alone that asked for all would wait for memory while the
/// others do not.
#[derive(Debug, Clone, Copy)]
pub(super) struct NextLines {
    /// Tiles that asked before.
    number: usize,
    /// Tiles that ask.
    of: usize,
}

impl NextLines {
    /// The shares of `of` tiles from the `number`th on.
    pub(super) fn from(number: usize, of: usize) -> Self {
        Self { number, of }
    }

    /// The share of the next tile, which reads `words` lines from `lines` on, or their first halves:
    /// from the first byte on, and how many at each depth.
    #[inline(always)]
    pub(super) fn share(
        self,
        PanelWords {
            words: lines,
            layout,
        }: PanelWords,
        words: usize,
        reads_lines: bool,
    ) -> (*const u8, usize) {
        let behind = if reads_lines && words * layout.line == layout.half {
            // Both halves of a panel: the next panel.
            lines.wrapping_add(2 * layout.half)
        } else {
            lines.wrapping_add(words * layout.line)
        };
        let step = (size_of::<u32>() * layout.line).div_ceil(self.of);
        let first = behind.cast::<u8>();
        (first.wrapping_add(self.number * step * words), step)
    }

    /// The same for the tile after it.
    #[inline(always)]
    pub(super) fn advance(&mut self) {
        self.number += 1;
    }
}
