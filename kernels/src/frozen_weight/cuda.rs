//! Copies pieces of a weight to GPU memory, without a kernel.

use std::fmt;
use std::sync::Arc;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, DType, backend_extension};
use burn::tensor::bf16;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use crate::cpu::pool::Buffer;
use crate::cube::launch::output;

/// Consecutive elements of a weight.
#[derive(Clone)]
pub(crate) struct Piece(Arc<Buffer<bf16>>);

impl Piece {
    pub(super) fn new(numbers: Buffer<bf16>) -> Self {
        Self(Arc::new(numbers))
    }

    /// The elements; copied if another clone still owns them.
    fn into_buffer(self) -> Buffer<bf16> {
        Arc::try_unwrap(self.0).unwrap_or_else(|shared| Buffer::copy_of(&shared))
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece of {} elements", self.0.len())
    }
}

/// Operations that a GPU implements itself; not differentiable.
#[backend_extension(Cube)]
pub(crate) trait PieceOps: Backend {
    /// An uninitialised contiguous bf16 matrix on the device of `like`.
    fn empty_matrix_like(like: FloatTensor<Self>, shape: [usize; 2]) -> FloatTensor<Self>;

    /// Writes `piece` to the matrix in place, starting at element `first`.
    fn with_piece(matrix: FloatTensor<Self>, first: usize, piece: Piece) -> FloatTensor<Self>;
}

impl PieceOps for CubeBackend {
    fn empty_matrix_like(like: CubeTensor, shape: [usize; 2]) -> CubeTensor {
        output(&like, shape, DType::BF16)
    }

    fn with_piece(matrix: CubeTensor, first: usize, piece: Piece) -> CubeTensor {
        let bytes = first * size_of::<bf16>();
        let destination = matrix.handle.clone().offset_start(bytes as u64);
        let numbers = piece.into_buffer().into_bytes();
        matrix.client.write(&destination, numbers);
        matrix
    }
}
