//! Passes the state of each value head from chunk to chunk: the only sequential part of the gated
//! delta rule.
//!
//! A chunk corrects its values by what the previous state stores under its keys, decays the state,
//! and adds the corrected values under the keys.

use burn::tensor::Tensor;

/// Prepared data of all chunks, in the order of [`Order`].
#[derive(Debug, Clone)]
pub(super) struct Walk {
    /// Updates for an empty state, `[chunks, h, tokens, value_dim]`.
    pub(super) values: Tensor<4>,
    /// Coefficients whose product with the state before the chunk is subtracted from the updates,
    /// `[chunks, h, tokens, key_dim]`.
    pub(super) state_coefficients: Tensor<4>,
    /// Keys, decayed to the end of the chunk, `[chunks, h, tokens, key_dim]`.
    pub(super) keys: Tensor<4>,
    /// Decay of the whole chunk, `[chunks, h, 1, 1]`.
    pub(super) decay: Tensor<4>,
}

/// The order of chunks: the first chunks of all documents, then the second ones, and so on.
/// Documents are always in the same order, those with the most chunks first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    /// Number of documents with a first chunk, a second one, and so on; not increasing.
    pub(super) widths: Vec<usize>,
}

impl Walk {
    /// For each chunk, the rows of the state before it, followed by the tokens' updates, `[chunks,
    /// h, key_dim + tokens, value_dim]`.
    pub(super) fn run(self, order: &Order) -> Tensor<4> {
        #[cfg(feature = "cube")]
        if self.has_kernel() {
            return super::walk_on_gpu::run(self, order.clone());
        }
        self.run_with_tensors(order)
    }

    #[cfg(feature = "cube")]
    fn has_kernel(&self) -> bool {
        use crate::route::{is_cpu, is_served};
        use burn::tensor::DType;

        // Up to this key size, some columns of a state fit in the shared memory of every GPU.
        const MOST_KEYS: usize = 256;
        let all = [
            &self.values,
            &self.state_coefficients,
            &self.keys,
            &self.decay,
        ];
        let is_served =
            |x: &&Tensor<4>| x.dtype() == DType::F32 && is_served(*x) && !is_cpu(&x.device());
        self.keys.dims()[3] <= MOST_KEYS && all.iter().all(is_served)
    }

    /// Same contract as [`Walk::run`], in plain tensor operations.
    pub(super) fn run_with_tensors(self, order: &Order) -> Tensor<4> {
        let ([_, h, _, value_dim], key_dim) = (self.values.dims(), self.keys.dims()[3]);
        let options = (&self.values.device(), self.values.dtype());
        let (mut rows, mut first) = (Vec::new(), 0);
        let mut state = Tensor::zeros([1, h, key_dim, value_dim], options);
        for (number, &width) in order.widths.iter().enumerate() {
            let chunks_of = |x: &Tensor<4>| x.clone().narrow(0, first, width);
            if number == 0 {
                state = state.repeat_dim(0, width);
            }
            state = state.narrow(0, 0, width);
            let change = chunks_of(&self.values);
            let change = match number {
                // The state before the first chunks is empty.
                0 => change,
                _ => change.sub(chunks_of(&self.state_coefficients).matmul(state.clone())),
            };
            rows.push(Tensor::cat(vec![state.clone(), change.clone()], 2));
            let written = chunks_of(&self.keys).swap_dims(2, 3).matmul(change);
            state = state.mul(chunks_of(&self.decay)).add(written);
            first += width;
        }
        Tensor::cat(rows, 0)
    }
}

/// The states after the chunks, from the result of [`Walk::run`], `[chunks, h, key_dim,
/// value_dim]`.
pub(super) fn states_after(walked: Tensor<4>, keys: Tensor<4>, decay: Tensor<4>) -> Tensor<4> {
    let [_, _, tokens, key_dim] = keys.dims();
    let state = walked.clone().narrow(2, 0, key_dim);
    let change = walked.narrow(2, key_dim, tokens);
    state.mul(decay).add(keys.swap_dims(2, 3).matmul(change))
}
