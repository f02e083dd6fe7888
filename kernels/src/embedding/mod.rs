//! Token ids to rows of the embedding.

use burn::tensor::{DType, Int, Tensor, TensorData};

use crate::frozen_weight::{FrozenWeight, Storage};

/// Row `ids[t]` of `table` for each token, in f32: the residual stream begins here.
///
/// A table that is packed because it is also the head is read from its panels.
///
/// # Shapes
///
/// - `table`: `[v, d]`
/// - returns: `[n, d]`, f32
///
/// # Panics
///
/// If an id is no row of the table: callers check ids against the vocabulary.
pub fn embedding(table: &FrozenWeight, ids: &[u32]) -> Tensor<2> {
    let [vocabulary, d] = table.dims();
    assert!(
        ids.iter().all(|&id| (id as usize) < vocabulary),
        "token ids within the vocabulary"
    );
    match table.storage() {
        Storage::Packed(packed) => {
            let values = packed.rows(ids.iter().map(|&id| id as usize));
            Tensor::from_data(TensorData::new(values, [ids.len(), d]), table.device())
        }
        Storage::Dense(dense) => {
            let indices: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
            let indices = TensorData::new(indices, [ids.len()]);
            let indices = Tensor::<1, Int>::from_data(indices, table.device());
            dense.as_ref().clone().select(0, indices).cast(DType::F32)
        }
    }
}
