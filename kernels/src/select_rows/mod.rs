//! Selects rows of a tensor, each at most once, so that gradients need no summation.

mod backend;
#[cfg(feature = "cube")]
pub(crate) mod cuda;
pub mod reference;

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use crate::route::{is_served, is_served_by_cpu};
use backend::SelectOps;

/// Source rows: for each position a row number starting at 1, or 0 for zeros.
type Sources = Arc<[u32]>;

/// Increasing row indices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowIndices(Arc<[u32]>);

impl RowIndices {
    /// Stores increasing row indices.
    ///
    /// # Panics
    ///
    /// If they do not increase, or one is `u32::MAX`: a bug of the caller.
    pub fn new(numbers: &[u32]) -> Self {
        assert!(
            numbers.windows(2).all(|pair| pair[0] < pair[1]) && numbers.last() != Some(&u32::MAX),
            "select_rows: row indices must increase"
        );
        Self(numbers.into())
    }

    /// The row indices.
    pub fn numbers(&self) -> &[u32] {
        &self.0
    }

    /// Source rows of the selection.
    fn sources(&self) -> Sources {
        self.0.iter().map(|&row| row + 1).collect()
    }

    /// Source rows that put the selected rows back among `n` rows.
    fn gradient_sources(&self, n: usize) -> Sources {
        let mut sources = vec![0; n];
        for (place, &row) in (1..).zip(self.0.iter()) {
            sources[row as usize] = place;
        }
        sources.into()
    }
}

/// The rows of `x` with these indices.
///
/// # Shapes
///
/// - `x`: `[n, d]`, f32 or bf16
/// - returns: `[m, d]`, same dtype
///
/// # Panics
///
/// If a row index is out of range.
pub fn select_rows(x: Tensor<2>, rows: &RowIndices) -> Tensor<2> {
    let [n, d] = x.dims();
    assert!(
        rows.0.last().is_none_or(|&last| (last as usize) < n),
        "select_rows: row index {:?} is out of range for [{n}, {d}]",
        rows.0.last()
    );
    crate::operation!("select_rows");
    let has_kernel = is_served_by_cpu(&x) || (is_served(&x));
    if !has_kernel {
        return reference::select_rows(x, rows);
    }
    Tensor::from_dispatch(Dispatch::select_rows_of(x.into_dispatch(), rows.clone()))
}
