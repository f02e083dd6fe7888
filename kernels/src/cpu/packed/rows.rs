//! The left operand of a product: rows with arbitrary strides.

use std::borrow::Cow;
use std::ops::Range;

use super::operand::Operand;
use crate::cpu::matrix::Matrix;

/// Rows of a left operand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a, T> {
    values: &'a [T],
    /// Elements from one row to the next.
    pub(super) stride: usize,
    /// Elements from one depth to the next; 1 if a word holds several depths.
    pub(super) depth_stride: usize,
    first: usize,
    pub(super) n: usize,
}

impl<'a, T: Operand> Rows<'a, T> {
    /// Rows of `stride` elements, each used from its element `first`.
    pub(crate) fn new(values: &'a [T], stride: usize, first: usize) -> Self {
        let n = values.len().checked_div(stride).unwrap_or(0);
        Self {
            values,
            stride,
            depth_stride: 1,
            first,
            n,
        }
    }

    /// The transpose: `columns` of rows of `stride` elements become the rows. `values` must contain
    /// all depths of whole words.
    pub(crate) fn from_columns(values: &'a [T], stride: usize, columns: Range<usize>) -> Self {
        Self {
            values,
            stride: 1,
            depth_stride: stride,
            first: columns.start,
            n: columns.len(),
        }
    }

    /// Whether words can be read in place.
    pub(super) fn has_words(&self) -> bool {
        self.depth_stride == 1 || T::DEPTHS == 1
    }

    /// Whether reading in place is also faster for many rows.
    pub(super) fn is_in_place(&self) -> bool {
        T::reads_in_place() && self.depth_stride == 1
    }

    /// Pointer to word `word` of row `row`, where word 0 is the first of the product.
    pub(super) fn pointer(&self, row: usize, word: usize) -> *const T {
        let depth = word * T::DEPTHS * self.depth_stride;
        let offset = row * self.stride + self.first + depth;
        self.values.as_ptr().wrapping_add(offset)
    }

    /// Whether every row contains this many words.
    pub(super) fn holds(&self, words: usize) -> bool {
        if self.n == 0 || words == 0 {
            return true;
        }
        let last = (self.n - 1) * self.stride + self.first;
        last + (words * T::DEPTHS - 1) * self.depth_stride < self.values.len()
    }
}

impl<'a> Rows<'a, f32> {
    /// Rows of a matrix in either layout.
    pub(crate) fn from_matrix(matrix: Matrix<'a>, rows: Range<usize>) -> Self {
        Self {
            values: matrix.data(),
            stride: matrix.row_stride(),
            depth_stride: matrix.column_stride(),
            first: rows.start * matrix.row_stride(),
            n: rows.len(),
        }
    }
}

/// The same rows with a stride of whole words; rows of another width are padded with zeros.
pub(crate) fn pad_rows_to_words<T: Operand>(values: &[T], width: usize) -> (Cow<'_, [T]>, usize) {
    let stride = width.next_multiple_of(T::DEPTHS);
    if stride == width {
        return (Cow::Borrowed(values), width);
    }
    let mut even = vec![T::ZERO; values.len() / width * stride];
    for (to, from) in even
        .chunks_exact_mut(stride)
        .zip(values.chunks_exact(width))
    {
        to[..width].copy_from_slice(from);
    }
    (Cow::Owned(even), stride)
}
