//! Word layout of a panel: the two halves of each line interleaved, or all first halves followed by
//! all second halves.
//!
//! A tile should read contiguous memory. AVX-512 tiles use whole lines, AVX2 tiles use half of
//! each; AVX2 tiles that skip every second cache line reach only 0.92 of the rate.

use super::operand::Operand;
use super::panels::{COLUMNS, HALF};

/// Distances between the words of a panel, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PanelLayout {
    /// Distance between consecutive lines.
    pub(crate) line: usize,
    /// Distance between the two halves of a line.
    pub(crate) half: usize,
}

/// A panel's words and their layout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PanelWords {
    pub(crate) words: *const u32,
    pub(crate) layout: PanelLayout,
}

/// The words of a panel to be written, and their layout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PanelWordsMut {
    pub(crate) words: *mut u32,
    pub(crate) layout: PanelLayout,
}

impl PanelLayout {
    /// Layout of a panel with `lines` lines.
    pub(crate) fn new<T: Operand>(lines: usize) -> Self {
        if T::multiplies_lines() {
            Self {
                line: COLUMNS,
                half: HALF,
            }
        } else {
            Self {
                line: HALF,
                half: lines * HALF,
            }
        }
    }

    /// Offset of the word at line `line` and column `column`.
    pub(crate) fn offset(self, line: usize, column: usize) -> usize {
        line * self.line + column / HALF * self.half + column % HALF
    }
}
