//! Products of two matrices of f32 that nothing is known of beforehand.
//!
//! The right one is packed for this product alone: a pass over it, little beside the product for
//! the hundreds of rows that training multiplies.

use super::matrix::Matrix;
use super::packed::panels::Panels;
use super::packed::product::{Output, Panelled, Sum, Term, for_row_blocks};
use super::packed::rows::Rows;
use super::pool::Buffer;
use super::shared::Shared;

/// `a b`, in rows.
///
/// # Panics
///
/// If the shapes disagree.
pub fn product(a: Matrix<'_>, b: Matrix<'_>) -> Buffer<f32> {
    let (n, depth, columns) = (a.rows(), a.columns(), b.columns());
    assert_eq!(depth, b.rows(), "shapes of a matrix product");
    let panels = Panels::of(b);
    // SAFETY: the sums replace every element.
    unsafe {
        Buffer::filled(n * columns, |to| {
            let to = Shared::new(to);
            for_row_blocks::<f32, f32>(n, depth, |rows, spread| {
                Sum {
                    terms: &[Term::new(Rows::of(a, rows.clone()), &panels)],
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
