//! Views of floats as matrices: what the products read and write.
//!
//! A view is checked once, when it is made; the inner loops then run on pointers.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

/// A matrix to read, with any strides.
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
    pub fn of_rows(data: &'a [f32], columns: usize) -> Self {
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

    /// `rows` rows of `columns` contiguous floats that begin `row_stride` apart.
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
        assert!(end <= data.len(), "the matrix must lie within its data");
        Self {
            data,
            rows,
            columns,
            row_stride,
            column_stride: 1,
        }
    }

    /// Rows `rows` alone.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    #[must_use]
    pub fn part(self, rows: Range<usize>) -> Self {
        assert!(
            rows.start <= rows.end && rows.end <= self.rows,
            "rows of the matrix"
        );
        let start = (rows.start * self.row_stride).min(self.data.len());
        Self {
            data: &self.data[start..],
            rows: rows.len(),
            ..self
        }
    }

    /// The same data with rows and columns exchanged.
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

    /// Element `(0, 0)`.
    pub(super) fn pointer(&self) -> *const f32 {
        self.data.as_ptr()
    }
}

/// A matrix to write.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    data: *mut f32,
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
    adds: bool,
    lifetime: PhantomData<&'a mut f32>,
}

// SAFETY: it is an exclusive borrow of floats; those may be written from another thread.
unsafe impl Send for MatrixMut<'_> {}
// SAFETY: a shared reference gives out nothing but its pointer; writers split it into disjoint
// rows and columns.
unsafe impl Sync for MatrixMut<'_> {}

impl<'a> MatrixMut<'a> {
    /// Rows of `columns` floats to be replaced; they need not be initialised.
    ///
    /// # Panics
    ///
    /// If `data` is not a whole number of rows.
    pub fn uninitialised(data: &'a mut [MaybeUninit<f32>], columns: usize) -> Self {
        let rows = data.len().checked_div(columns).unwrap_or(0);
        assert_eq!(rows * columns, data.len(), "data must be whole rows");
        Self::new(data.as_mut_ptr().cast(), [rows, columns], columns)
    }

    /// `rows` rows of `columns` floats to be replaced, `row_stride` apart.
    ///
    /// # Panics
    ///
    /// If the last row ends outside `data`, or rows overlap.
    pub fn replace(data: &'a mut [f32], [rows, columns]: [usize; 2], row_stride: usize) -> Self {
        let end = if rows == 0 {
            0
        } else {
            (rows - 1) * row_stride + columns
        };
        assert!(end <= data.len(), "the matrix must lie within its data");
        assert!(rows < 2 || columns <= row_stride, "rows must not overlap");
        Self::new(data.as_mut_ptr(), [rows, columns], row_stride)
    }

    /// Like [`Self::replace`], but a product is added to what is there.
    ///
    /// # Panics
    ///
    /// As [`Self::replace`].
    pub fn add(data: &'a mut [f32], shape: [usize; 2], row_stride: usize) -> Self {
        Self {
            adds: true,
            ..Self::replace(data, shape, row_stride)
        }
    }

    fn new(data: *mut f32, [rows, columns]: [usize; 2], row_stride: usize) -> Self {
        let lifetime = PhantomData;
        Self {
            data,
            rows,
            columns,
            row_stride,
            column_stride: 1,
            adds: false,
            lifetime,
        }
    }

    /// The same floats with rows and columns exchanged.
    pub(super) fn transposed(&mut self) -> MatrixMut<'_> {
        MatrixMut {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            data: self.data,
            adds: self.adds,
            lifetime: PhantomData,
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    pub(super) fn row_stride(&self) -> usize {
        self.row_stride
    }

    pub(super) fn column_stride(&self) -> usize {
        self.column_stride
    }

    /// Whether the product is added to what is there.
    pub(super) fn adds(&self) -> bool {
        self.adds
    }

    /// Element `(0, 0)`; valid for every row and column of the view.
    pub(super) fn pointer(&self) -> *mut f32 {
        self.data
    }
}
