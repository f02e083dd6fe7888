//! Token ids to rows of the embedding.

mod cpu;
#[cfg(feature = "cube")]
pub(crate) mod cuda;
pub mod reference;

#[cfg(feature = "cube")]
use burn::backend::tensor::FloatTensor;
#[cfg(feature = "cube")]
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

use crate::HeldNumbers;
use crate::frozen_weight::{FrozenWeight, Storage};
#[cfg(feature = "cube")]
use crate::route::is_served_by_gpu;

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
    embedding_held(table, &HeldNumbers::new(ids.to_vec()))
}

/// [`embedding`] of ids that a GPU finds in the same place when they change.
///
/// # Panics
///
/// As [`embedding`].
pub fn embedding_held(table: &FrozenWeight, held: &HeldNumbers) -> Tensor<2> {
    crate::operation!("embedding");
    let ids = held.numbers();
    let [vocabulary, d] = table.dims();
    assert!(
        ids.iter().all(|&id| (id as usize) < vocabulary),
        "token ids within the vocabulary"
    );
    match table.storage() {
        Storage::Packed(packed) => cpu::embedding(packed, d, ids, table.device()),
        Storage::Dense(dense) => {
            #[cfg(feature = "cube")]
            if is_served_by_gpu(dense) {
                let dense = dense.as_ref().clone().into_dispatch();
                return Tensor::from_dispatch(Dispatch::rows_of_table(dense, held.clone()));
            }
            reference::embedding(dense, ids)
        }
    }
}

/// What GPUs implement themselves; nothing is differentiated.
#[cfg(feature = "cube")]
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(crate) trait EmbeddingOps: Backend {
    /// Rows `ids` of a table as f32.
    #[fusion(
        dtype = burn::tensor::DType::F32,
        shape = burn::tensor::Shape::new([ids.numbers().len(), table[1]]),
    )]
    fn rows_of_table(table: FloatTensor<Self>, ids: HeldNumbers) -> FloatTensor<Self>;
}
