//! Token ids to rows of the embedding.

mod cpu;
#[cfg(feature = "cube")]
pub(crate) mod cuda;
pub mod reference;

use burn::tensor::Tensor;

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
        Storage::Packed(packed) => cpu::embedding((packed, d), ids, table.device()),
        Storage::Dense(dense) => {
            #[cfg(feature = "cube")]
            if let Some(rows) = cuda::embedding(dense, ids) {
                return rows;
            }
            reference::embedding(dense, ids)
        }
    }
}
