//! Matrix views of float slices, the operands of products.
//!
//! A view is checked once, when it is created; the inner loops then use pointers.

/// A read-only matrix with arbitrary strides.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Rows of `columns` contiguous floats.
    ///
    /// # Panics
    ///
    /// If `data` is not a whole number of rows.
    pub fn from_rows(data: &'a [f32], columns: usize) -> Self {
        let rows = data.len().checked_div(columns).unwrap_or(0);
        assert_eq!(rows * columns, data.len(), "data must be whole rows");
        Self {
            data,
            rows,
            columns,
            row_stride: columns,
            column_stride: 1,
        }
    }

    /// `rows` rows of `columns` contiguous floats, at offsets that are multiples of `row_stride`.
    ///
    /// # Panics
    ///
    /// If the last row ends outside `data`.
    pub fn strided(data: &'a [f32], [rows, columns]: [usize; 2], row_stride: usize) -> Self {
        let end = if rows == 0 {
            0
        } else {
            (rows - 1) * row_stride + columns
        };
        assert!(end <= data.len(), "the matrix must be within its data");
        Self {
            data,
            rows,
            columns,
            row_stride,
            column_stride: 1,
        }
    }

    /// The transposed view.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    pub(super) fn row_stride(&self) -> usize {
        self.row_stride
    }

    pub(super) fn column_stride(&self) -> usize {
        self.column_stride
    }

    /// The data, starting at element `(0, 0)`.
    pub(super) fn data(&self) -> &'a [f32] {
        self.data
    }
}
