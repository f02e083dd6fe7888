//! Rows of a packed table.

use burn::tensor::{Device, Tensor, TensorData};

use crate::frozen_weight::Packed;

/// The contract is [`super::embedding`]'s, for a table with rows of `d` numbers.
pub(super) fn embedding(table: &Packed, d: usize, ids: &[u32], device: &Device) -> Tensor<2> {
    let values = table.rows(ids.iter().map(|&id| id as usize));
    Tensor::from_data(TensorData::new(values, [ids.len(), d]), device)
}
