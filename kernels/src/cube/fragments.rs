//! Fragments of the matrix units: 16 rows, columns and depth, with sums in f32.

use cubecl::cmma::{Matrix, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;

/// Rows, columns and depth of a fragment.
pub(crate) const FRAGMENT: usize = 16;

/// What the hardware wants of the address of a fragment, in bytes.
pub(crate) const ALIGNMENT: usize = 128;

/// A fragment of sums, at zero.
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
