//! Products that allocate their result.

use super::gemm::{Products, gemm};
use super::matrix::MatrixMut;
use super::pool::Buffer;

/// `Σ aᵢ bᵢ` in rows.
///
/// # Panics
///
/// If there is no product, or the shapes disagree.
pub fn product(products: &Products<'_>) -> Buffer<f32> {
    let (a, b) = products[0];
    let (rows, columns) = (a.rows(), b.columns());
    // SAFETY: `gemm` replaces every element of its target.
    unsafe {
        Buffer::filled(rows * columns, |c| {
            gemm(MatrixMut::uninitialised(c, columns), products)
        })
    }
}
