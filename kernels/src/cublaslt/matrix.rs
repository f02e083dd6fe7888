//! Matrix views of GPU buffers.

use std::ops::Range;

use burn::backend::DType;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

/// Largest alignment that cuBLASLt uses, in bytes.
const MOST_ALIGNED: u64 = 256;

/// A matrix within a buffer: elements of a stored row are contiguous, rows are `pitch` elements
/// apart. It may be read transposed.
#[derive(Clone)]
pub(crate) struct Matrix {
    tensor: CubeTensor,
    /// Offset from the start of the tensor, in elements.
    offset: usize,
    /// Dimensions as stored.
    rows: usize,
    columns: usize,
    pitch: usize,
    transposed: bool,
}

impl Matrix {
    /// A tensor `[rows, columns]`; copied if its rows are not contiguous.
    pub(crate) fn new(x: &CubeTensor) -> Self {
        let is_plain = |x: &CubeTensor| {
            let (shape, strides) = (x.meta.shape(), x.meta.strides());
            shape.len() == 2 && strides[1] == 1 && strides[0] >= shape[1]
        };
        let tensor = if is_plain(x) {
            x.clone()
        } else {
            into_contiguous(x.clone())
        };
        assert_eq!(tensor.meta.shape().len(), 2, "a matrix has two dimensions");
        let (rows, columns) = (tensor.meta.shape()[0], tensor.meta.shape()[1]);
        let pitch = tensor.meta.strides()[0].max(columns);
        Self {
            tensor,
            offset: 0,
            rows,
            columns,
            pitch,
            transposed: false,
        }
        .assert_in_bounds()
    }

    /// The elements `range` of a contiguous flat tensor, as a matrix.
    pub(crate) fn from_flat(
        x: &CubeTensor,
        range: Range<usize>,
        [rows, columns]: [usize; 2],
    ) -> Self {
        assert_eq!(
            range.len(),
            rows * columns,
            "the range must have the elements of the matrix"
        );
        assert_eq!(
            x.meta.strides().last(),
            Some(&1),
            "the tensor must be contiguous"
        );
        Self {
            tensor: x.clone(),
            offset: range.start,
            rows,
            columns,
            pitch: columns,
            transposed: false,
        }
        .assert_in_bounds()
    }

    /// A range of the stored columns.
    pub(crate) fn columns(&self, range: Range<usize>) -> Self {
        assert!(
            !self.transposed && range.end <= self.columns,
            "columns must be within the matrix"
        );
        Self {
            offset: self.offset + range.start,
            columns: range.len(),
            ..self.clone()
        }
    }

    /// The transposed view.
    pub(crate) fn transposed(self) -> Self {
        Self {
            transposed: !self.transposed,
            ..self
        }
    }

    /// Asserts that the matrix is within its buffer.
    fn assert_in_bounds(self) -> Self {
        let last = match self.rows {
            0 => 0,
            rows => (rows - 1) * self.pitch + self.columns,
        };
        let bytes = (self.offset + last) * self.tensor.dtype.size();
        assert!(
            bytes as u64 <= self.tensor.handle.size_in_used(),
            "a matrix must be within its buffer"
        );
        self
    }

    /// Rows and columns as read.
    pub(crate) fn dims(&self) -> [usize; 2] {
        match self.transposed {
            true => [self.columns, self.rows],
            false => [self.rows, self.columns],
        }
    }

    pub(crate) fn tensor(&self) -> &CubeTensor {
        &self.tensor
    }

    pub(super) fn dtype(&self) -> DType {
        self.tensor.dtype
    }

    pub(super) fn is_transposed(&self) -> bool {
        self.transposed
    }

    pub(super) fn pitch(&self) -> usize {
        self.pitch
    }

    /// Offset from the start of the tensor's buffer.
    pub(super) fn offset_bytes(&self) -> u64 {
        (self.offset * self.tensor.dtype.size()) as u64
    }

    /// Address alignment in bytes; buffers are aligned at least as strictly.
    pub(super) fn alignment(&self) -> u32 {
        let offset = self.tensor.handle.offset_start.unwrap_or(0) + self.offset_bytes();
        let powers = (offset | MOST_ALIGNED).trailing_zeros();
        1 << powers
    }
}
