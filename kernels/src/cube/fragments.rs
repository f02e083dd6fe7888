//! Tensor-core fragments: 16 rows, columns and depth, accumulated in f32.

use cubecl::cmma::{Matrix, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;

/// Rows, columns and depth of a fragment.
pub(crate) const FRAGMENT: usize = 16;

/// Address alignment that the hardware requires of a fragment, in bytes.
pub(crate) const ALIGNMENT: usize = 128;

/// An accumulator fragment, initialised to zero.
#[cube]
pub(crate) fn zeros() -> Matrix<f32> {
    Matrix::<f32>::from_value(
        MatrixIdent::Accumulator,
        FRAGMENT,
        FRAGMENT,
        FRAGMENT,
        MatrixLayout::Undefined,
        0.0f32,
    )
}
