//! The state of each value head, handed on from chunk to chunk: the one part of the gated delta rule that
//! cannot be done for all chunks at once.
//!
//! A chunk changes its values by what the state before it holds under the keys, and writes them under the
//! keys into the state, which has decayed.

use burn::tensor::Tensor;

/// What all chunks prepared, in the order of [`Order`].
#[derive(Debug, Clone)]
pub(super) struct Walk {
    /// Values as the chunk would write them into an empty state, `[chunks, h, tokens, value_dim]`.
    pub(super) values: Tensor<4>,
    /// What of the values the state before the chunk already holds, to be multiplied with it, `[chunks,
    /// h, tokens, key_dim]`.
    pub(super) held: Tensor<4>,
    /// Keys, decayed to the chunk's end, `[chunks, h, tokens, key_dim]`.
    pub(super) keys: Tensor<4>,
    /// Decay of the whole chunk, `[chunks, h, 1, 1]`.
    pub(super) decay: Tensor<4>,
}

/// The order of chunks: the first ones of all documents, then the second ones, and so on, each time in
/// the same order of documents, of which those with most chunks come first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    /// How many documents have a first chunk, a second one, and so on; not rising.
    pub(super) widths: Vec<usize>,
}

impl Walk {
    /// The state before each chunk, and behind its rows what the tokens change, `[chunks, h, key_dim +
    /// tokens, value_dim]`.
    pub(super) fn run(self, order: &Order) -> Tensor<4> {
        #[cfg(all(feature = "cube", not(feature = "fusion")))]
        if self.has_kernel() {
            return super::walk_on_gpu::run(self, order.clone());
        }
        self.in_tensors(order)
    }

    #[cfg(all(feature = "cube", not(feature = "fusion")))]
    fn has_kernel(&self) -> bool {
        use crate::route::{is_cpu, is_served};
        use burn::tensor::DType;

        // Some columns of a state lie in shared memory, which every GPU has for so many keys.
        const MOST_KEYS: usize = 256;
        let all = [&self.values, &self.held, &self.keys, &self.decay];
        let is_served =
            |x: &&Tensor<4>| x.dtype() == DType::F32 && is_served(*x) && !is_cpu(&x.device());
        self.keys.dims()[3] <= MOST_KEYS && all.iter().all(is_served)
    }

    /// The contract is [`Walk::run`]'s, in plain tensor operations.
    pub(super) fn in_tensors(self, order: &Order) -> Tensor<4> {
        let ([_, h, _, value_dim], key_dim) = (self.values.dims(), self.keys.dims()[3]);
        let options = (&self.values.device(), self.values.dtype());
        let (mut rows, mut first) = (Vec::new(), 0);
        let mut state = Tensor::zeros([1, h, key_dim, value_dim], options);
        for (number, &width) in order.widths.iter().enumerate() {
            let of = |x: &Tensor<4>| x.clone().narrow(0, first, width);
            if number == 0 {
                state = state.repeat_dim(0, width);
            }
            state = state.narrow(0, 0, width);
            let change = of(&self.values);
            let change = match number {
                // The first chunks find nothing.
                0 => change,
                _ => change.sub(of(&self.held).matmul(state.clone())),
            };
            rows.push(Tensor::cat(vec![state.clone(), change.clone()], 2));
            let written = of(&self.keys).swap_dims(2, 3).matmul(change);
            state = state.mul(of(&self.decay)).add(written);
            first += width;
        }
        Tensor::cat(rows, 0)
    }
}

/// The states behind chunks, given what [`Walk::run`] gave of them, `[chunks, h, key_dim, value_dim]`.
pub(super) fn states_behind(walked: Tensor<4>, keys: Tensor<4>, decay: Tensor<4>) -> Tensor<4> {
    let [_, _, tokens, key_dim] = keys.dims();
    let before = walked.clone().narrow(2, 0, key_dim);
    let change = walked.narrow(2, key_dim, tokens);
    before.mul(decay).add(keys.swap_dims(2, 3).matmul(change))
}
