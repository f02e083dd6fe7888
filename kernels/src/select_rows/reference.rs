//! Row selection in plain tensor operations.

use burn::tensor::{Int, Tensor, TensorData};

use super::RowIndices;

/// Same contract as [`super::select_rows`].
pub fn select_rows(x: Tensor<2>, rows: &RowIndices) -> Tensor<2> {
    let numbers: Vec<i32> = rows.numbers().iter().map(|&row| row as i32).collect();
    let numbers = TensorData::new(numbers, [rows.numbers().len()]);
    let device = x.device();
    x.select(0, Tensor::<1, Int>::from_data(numbers, &device))
}
