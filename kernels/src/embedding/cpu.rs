//! Looks up rows of a packed embedding table.

use burn::tensor::{Device, Tensor, TensorData};

use crate::frozen_weight::Packed;

/// Same contract as [`super::embedding`], for a table with rows of `d` elements.
pub(super) fn embedding(table: &Packed, d: usize, ids: &[u32], device: &Device) -> Tensor<2> {
    let values = table.rows(ids.iter().map(|&id| id as usize));
    Tensor::from_data(TensorData::new(values, [ids.len(), d]), device)
}
