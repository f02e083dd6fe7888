//! Where the words of a panel lie: the two halves of its lines in turns, or one half behind the other.
//!
//! A tile reads what lies in one piece. Registers of AVX-512 hold whole lines; those of AVX2 half of
//! them, and tiles that skip every second line of the cache run at .92 of the rate of those that do not.

use super::operand::Operand;
use super::panels::{COLUMNS, HALF};

/// Words between those of a panel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PanelLayout {
    /// From one line to the next.
    pub(crate) line: usize,
    /// From the first half of a line to the other.
    pub(crate) half: usize,
}

/// Words of a panel, and how they lie from there on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PanelWords {
    pub(crate) words: *const u32,
    pub(crate) layout: PanelLayout,
}

/// The same to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PanelWordsMut {
    pub(crate) words: *mut u32,
    pub(crate) layout: PanelLayout,
}

impl PanelLayout {
    /// Of a panel of `lines` lines.
    pub(crate) fn of<T: Operand>(lines: usize) -> Self {
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

    /// Where the word of column `column` of line `line` lies.
    pub(crate) fn at(self, line: usize, column: usize) -> usize {
        line * self.line + column / HALF * self.half + column % HALF
    }
}
