//! Products of two f32 matrices without prepacked operands.
//!
//! The right operand is packed for this product only. This pass is cheap compared with the product
//! for the hundreds of rows in training.

use super::matrix::Matrix;
use super::packed::panels::Panels;
use super::packed::product::{Output, Panelled, Sum, Term, for_row_blocks};
use super::packed::rows::Rows;
use super::pool::Buffer;
use super::shared::Shared;

/// `a b`, row-major.
///
/// # Panics
///
/// If the inner dimensions differ.
pub fn product(a: Matrix<'_>, b: Matrix<'_>) -> Buffer<f32> {
    let (n, depth, columns) = (a.rows(), a.columns(), b.columns());
    assert_eq!(
        depth,
        b.rows(),
        "the inner dimensions of a matmul must match"
    );
    let panels = Panels::from_matrix(b);
    // SAFETY: the sums replace every element.
    unsafe {
        Buffer::filled(n * columns, |to| {
            let to = Shared::new(to);
            for_row_blocks::<f32, f32>(n, depth, |rows, spread| {
                Sum {
                    terms: &[Term::new(Rows::from_matrix(a, rows.clone()), &panels)],
                    panels: Panelled::All,
                    bias: None,
                    residual: None,
                    output: Output::new(
                        to.slice(rows.start * columns, rows.len() * columns),
                        columns,
                    ),
                }
                .run(spread);
            });
        })
    }
}
