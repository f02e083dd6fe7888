//! Tiles of the result of a packed product, which fit in the registers of one core.

use burn::tensor::bf16;

use super::layout::{PanelLayout, PanelWords};
use super::operand::Operand;
use super::panels::{COLUMNS, HALF};
use crate::cpu::isa::for_each_isa;
use crate::cpu::number::Number;

/// Maximum rows per tile.
pub(crate) const ROWS: usize = 12;

/// Maximum number of products per sum.
pub(crate) const TERMS: usize = 4;

/// One product of a tile's sum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileTerm<T> {
    /// Element `(0, 0)` of A at the first word of `b`.
    pub(crate) a: *const T,
    /// Elements from one row of A to the next.
    pub(crate) row_stride: usize,
    /// Elements of A from the depths of one word to the depths of the next word.
    pub(crate) word_stride: usize,
    /// `words` lines of [`COLUMNS`] words.
    pub(crate) b: *const u32,
    pub(crate) layout: PanelLayout,
    pub(crate) words: usize,
}

/// Output of a tile.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TileOutput {
    F32(*mut f32),
    Bf16(*mut bf16),
}

/// One tile: `c[rows, columns] = residual + bias + Σ a b`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileJob<T> {
    /// The first `n_terms` terms are used.
    pub(crate) terms: [TileTerm<T>; TERMS],
    pub(crate) n_terms: usize,
    /// At least 1, at most [`ROWS`].
    pub(crate) rows: usize,
    /// At least 1, at most [`COLUMNS`].
    pub(crate) columns: usize,
    /// One value per column, or null.
    pub(crate) bias: *const f32,
    /// Element `(0, 0)` of the residual, or null.
    pub(crate) residual: *const f32,
    pub(crate) residual_stride: usize,
    pub(crate) output: TileOutput,
    pub(crate) output_stride: usize,
}

impl<T> TileTerm<T> {
    /// A product of depth zero.
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
    /// The product restricted to `words`.
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
    /// Computes a tile in portable loops. Pointers must be valid as for [`Operand::run_tiles`].
    pub(crate) fn portable[T: Operand](job: &TileJob<T>) {
        let mut sums = [[0.0f32; COLUMNS]; ROWS];
        for term in job.products() {
            for p in 0..term.words {
                // SAFETY: the panel has `words` lines.
                let line = unsafe {
                    [0, HALF].map(|half| *term.b.add(term.layout.offset(p, half)).cast::<[u32; HALF]>())
                };
                for (i, sum) in sums.iter_mut().enumerate().take(job.rows) {
                    let a = term.a.wrapping_add(i * term.row_stride + p * term.word_stride);
                    for (sum, &word) in sum.iter_mut().zip(line.as_flattened()) {
                        let mut products = 0.0;
                        for depth in 0..T::DEPTHS {
                            // SAFETY: rows of A have all depths of each word.
                            let a = unsafe { *a.add(depth) };
                            products += a.widen() * T::unpack_word(word, depth).widen();
                        }
                        *sum += products;
                    }
                }
            }
        }
        for (i, sum) in sums.iter().enumerate().take(job.rows) {
            for (j, &value) in sum.iter().enumerate().take(job.columns) {
                let index = i * job.output_stride + j;
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
                        TileOutput::F32(to) => *to.add(index) = value,
                        TileOutput::Bf16(to) => *to.add(index) = bf16::narrow(value),
                    }
                }
            }
        }
    }
}

/// Splits prefetching between the tiles that read the same lines of a panel: each prefetches a
/// share of the lines that are read next. If a single tile prefetched all of them, it alone would
/// wait for memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct NextLines {
    /// Number of tiles that have already prefetched.
    number: usize,
    /// Total number of tiles.
    n_tiles: usize,
}

impl NextLines {
    /// The shares of `n_tiles` tiles, starting with tile `number`.
    pub(super) fn new(number: usize, n_tiles: usize) -> Self {
        Self { number, n_tiles }
    }

    /// The share of the next tile: its first byte, and the bytes per depth. The tile reads `words`
    /// lines, or their first halves, starting at `lines`.
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
        let next_line = if reads_lines && words * layout.line == layout.half {
            // Both halves of a panel were read: continue with the next panel.
            lines.wrapping_add(2 * layout.half)
        } else {
            lines.wrapping_add(words * layout.line)
        };
        let step = (size_of::<u32>() * layout.line).div_ceil(self.n_tiles);
        let first = next_line.cast::<u8>();
        (first.wrapping_add(self.number * step * words), step)
    }

    /// Advances to the next tile.
    #[inline(always)]
    pub(super) fn advance(&mut self) {
        self.number += 1;
    }
}
