//! Matrices within buffers of a GPU.

use std::ops::Range;

use burn::backend::DType;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

/// What cuBLASLt takes an address for at best, in bytes.
const MOST_ALIGNED: u64 = 256;

/// A matrix within a buffer: the elements of a stored row lie side by side, the rows `pitch` elements
/// apart. It may be read transposed.
#[derive(Clone)]
pub(crate) struct Matrix {
    tensor: CubeTensor,
    /// In elements, from where the tensor begins.
    offset: usize,
    /// As they are stored.
    rows: usize,
    columns: usize,
    pitch: usize,
    transposed: bool,
}

impl Matrix {
    /// A tensor `[rows, columns]`; one whose columns do not lie side by side is copied.
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
        assert_eq!(tensor.meta.shape().len(), 2, "a matrix");
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
        .checked()
    }

    /// Elements `range` of a flat tensor without holes, as a matrix.
    pub(crate) fn of_flat(
        x: &CubeTensor,
        range: Range<usize>,
        [rows, columns]: [usize; 2],
    ) -> Self {
        assert_eq!(range.len(), rows * columns, "elements of a matrix");
        assert_eq!(x.meta.strides().last(), Some(&1), "a tensor without holes");
        Self {
            tensor: x.clone(),
            offset: range.start,
            rows,
            columns,
            pitch: columns,
            transposed: false,
        }
        .checked()
    }

    /// Some of the stored columns.
    pub(crate) fn columns(&self, range: Range<usize>) -> Self {
        assert!(
            !self.transposed && range.end <= self.columns,
            "columns of a matrix"
        );
        Self {
            offset: self.offset + range.start,
            columns: range.len(),
            ..self.clone()
        }
    }

    /// Read the other way round.
    pub(crate) fn transposed(self) -> Self {
        Self {
            transposed: !self.transposed,
            ..self
        }
    }

    /// That it lies within its buffer.
    fn checked(self) -> Self {
        let last = match self.rows {
            0 => 0,
            rows => (rows - 1) * self.pitch + self.columns,
        };
        let bytes = (self.offset + last) * self.tensor.dtype.size();
        assert!(
            bytes as u64 <= self.tensor.handle.size_in_used(),
            "a matrix lies within its buffer"
        );
        self
    }

    /// Rows and columns as they are read.
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

    /// From where the tensor's buffer begins.
    pub(super) fn offset_bytes(&self) -> u64 {
        (self.offset * self.tensor.dtype.size()) as u64
    }

    /// Bytes of which the address is a multiple; buffers begin at multiples of more.
    pub(super) fn alignment(&self) -> u32 {
        let offset = self.tensor.handle.offset_start.unwrap_or(0) + self.offset_bytes();
        let powers = (offset | MOST_ALIGNED).trailing_zeros();
        1 << powers
    }
}
