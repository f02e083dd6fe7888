//! Looks up token embeddings.

mod cpu;
#[cfg(feature = "cube")]
pub(crate) mod cuda;
pub mod reference;

#[cfg(feature = "cube")]
use burn::backend::tensor::FloatTensor;
#[cfg(feature = "cube")]
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

use crate::DeviceIntegers;
use crate::frozen_weight::{FrozenWeight, Storage};
#[cfg(feature = "cube")]
use crate::route::is_served_by_gpu;

/// Row `ids[t]` of `table` for each token, in f32: the start of the residual stream.
///
/// A packed table (one that is also the LM head) is read from its panels.
///
/// # Shapes
///
/// - `table`: `[v, d]`
/// - returns: `[n, d]`, f32
///
/// # Panics
///
/// If an id is not a row of the table: callers check ids against the vocabulary.
pub fn embedding(table: &FrozenWeight, ids: &[u32]) -> Tensor<2> {
    embedding_of_device_ids(table, &DeviceIntegers::new(ids.to_vec()))
}

/// [`embedding`] of ids at a fixed device address, so that GPU launches can be replayed.
///
/// # Panics
///
/// Same as [`embedding`].
pub fn embedding_of_device_ids(table: &FrozenWeight, device_ids: &DeviceIntegers) -> Tensor<2> {
    crate::operation!("embedding");
    let ids = device_ids.numbers();
    let [vocabulary, d] = table.dims();
    assert!(
        ids.iter().all(|&id| (id as usize) < vocabulary),
        "token ids must be below the vocabulary size"
    );
    match table.storage() {
        Storage::Packed(packed) => cpu::embedding(packed, d, ids, table.device()),
        Storage::Quantised(_) => embedding_of_device_ids(&table.dequantised(), device_ids),
        Storage::Dense(dense) => {
            #[cfg(feature = "cube")]
            if is_served_by_gpu(dense) {
                let dense = dense.as_ref().clone().into_dispatch();
                return Tensor::from_dispatch(Dispatch::rows_of_table(dense, device_ids.clone()));
            }
            reference::embedding(dense, ids)
        }
    }
}

/// Operation that a GPU implements itself; not differentiable.
#[cfg(feature = "cube")]
#[backend_extension(Cube)]
pub(crate) trait EmbeddingOps: Backend {
    /// Rows `ids` of a table, as f32.
    fn rows_of_table(table: FloatTensor<Self>, ids: DeviceIntegers) -> FloatTensor<Self>;
}
