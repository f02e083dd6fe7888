//! Pieces of a weight into the memory of a GPU, without a kernel.

use std::fmt;
use std::sync::Arc;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, DType, backend_extension};
use burn::tensor::bf16;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use crate::cpu::pool::Buffer;
use crate::cube::launch::output;

/// Numbers that lie side by side in a weight.
#[derive(Clone)]
pub(crate) struct Piece(Arc<Buffer<bf16>>);

impl Piece {
    pub(super) fn new(numbers: Buffer<bf16>) -> Self {
        Self(Arc::new(numbers))
    }

    /// The numbers; a copy where another clone still has them.
    fn into_buffer(self) -> Buffer<bf16> {
        Arc::try_unwrap(self.0).unwrap_or_else(|shared| Buffer::copy_of(&shared))
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece of {} numbers", self.0.len())
    }
}

/// What GPUs implement themselves; nothing is differentiated.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(crate) trait PieceOps: Backend {
    /// A matrix in bf16 without holes on the device of `like`; its contents are whatever lay there.
    #[fusion(dtype = burn::tensor::DType::BF16, shape = burn::tensor::Shape::new(*shape))]
    fn matrix_beside(like: FloatTensor<Self>, shape: [usize; 2]) -> FloatTensor<Self>;

    /// The matrix, in its own memory, with `piece` from its number `first` on.
    #[fusion(dtype = matrix, shape = matrix)]
    fn with_piece(matrix: FloatTensor<Self>, first: usize, piece: Piece) -> FloatTensor<Self>;
}

impl PieceOps for CubeBackend {
    fn matrix_beside(like: CubeTensor, shape: [usize; 2]) -> CubeTensor {
        output(&like, shape, DType::BF16)
    }

    fn with_piece(matrix: CubeTensor, first: usize, piece: Piece) -> CubeTensor {
        let bytes = first * size_of::<bf16>();
        let place = matrix.handle.clone().offset_start(bytes as u64);
        let numbers = piece.into_buffer().into_bytes();
        matrix.client.write(&place, numbers);
        matrix
    }
}
