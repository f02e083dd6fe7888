//! Some rows of a tensor, each at most once, so that no gradient of theirs is a sum.

mod backend;
#[cfg(all(feature = "cube", not(feature = "fusion")))]
pub(crate) mod cuda;
pub mod reference;

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use crate::route::{is_served, is_served_by_cpu};
use backend::SelectOps;

/// Where rows come from: for each place the number of a row, counted from 1, or 0 for zeros.
type Sources = Arc<[u32]>;

/// Numbers of rows, rising.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowNumbers(Arc<[u32]>);

impl RowNumbers {
    /// These numbers.
    ///
    /// # Panics
    ///
    /// If they do not rise, or one is `u32::MAX`: a bug of the caller.
    pub fn new(numbers: &[u32]) -> Self {
        assert!(
            numbers.windows(2).all(|pair| pair[0] < pair[1]) && numbers.last() != Some(&u32::MAX),
            "select_rows: numbers of rows rise"
        );
        Self(numbers.into())
    }

    /// The numbers.
    pub fn numbers(&self) -> &[u32] {
        &self.0
    }

    /// Of the selected rows.
    fn sources(&self) -> Sources {
        self.0.iter().map(|&row| row + 1).collect()
    }

    /// Of `n` rows that the selected ones are put back among.
    fn sources_back(&self, n: usize) -> Sources {
        let mut sources = vec![0; n];
        for (place, &row) in (1..).zip(self.0.iter()) {
            sources[row as usize] = place;
        }
        sources.into()
    }
}

/// The rows of `x` with these numbers.
///
/// # Shapes
///
/// - `x`: `[n, d]`, f32 or bf16
/// - returns: `[m, d]`, same dtype
///
/// # Panics
///
/// If there is no row of such a number.
pub fn select_rows(x: Tensor<2>, rows: &RowNumbers) -> Tensor<2> {
    let [n, d] = x.dims();
    assert!(
        rows.0.last().is_none_or(|&last| (last as usize) < n),
        "select_rows: {:?} of [{n}, {d}]",
        rows.0.last()
    );
    crate::operation!("select_rows");
    let has_kernel = is_served_by_cpu(&x) || (cfg!(not(feature = "fusion")) && is_served(&x));
    if !has_kernel {
        return reference::select_rows(x, rows);
    }
    Tensor::from_dispatch(Dispatch::rows_selected(x.into_dispatch(), rows.clone()))
}
