//! The gated delta rule in plain tensor operations, one token at a time.

use burn::tensor::{DType, Tensor};

use super::{DeltaHeads, DeltaInputs, NORM_EPS};
use crate::Documents;
use crate::route::arithmetic;

/// Inputs of one or more tokens, with a query and a key for each value head.
#[derive(Debug, Clone)]
struct Prepared {
    /// Normalised to length `1 / √key_dim`, `[n, value heads, key_dim]`.
    q: Tensor<3>,
    /// Normalised to length 1, `[n, value heads, key_dim]`.
    k: Tensor<3>,
    /// `[n, value heads, value_dim]`.
    v: Tensor<3>,
    /// `[n, value heads]`.
    log_decay: Tensor<2>,
    /// `[n, value heads]`.
    beta: Tensor<2>,
}

impl Prepared {
    /// In f32, or in f64 for f64 inputs.
    fn new(inputs: DeltaInputs, heads: DeltaHeads) -> Self {
        let inside = arithmetic(inputs.qkv.dtype());
        let qkv = inputs.qkv.cast(inside);
        let n = qkv.dims()[0];
        let group = heads.value_heads / heads.key_heads;
        let normed = |first: usize, scale: f64| {
            let x = qkv.clone().narrow(1, first, heads.keys());
            let x: Tensor<3> = x.reshape([n, heads.key_heads, heads.key_dim]);
            let squares = x.clone().powi_scalar(2).sum_dim(2);
            let x = x.mul(squares.add_scalar(NORM_EPS).sqrt().recip());
            x.mul_scalar(scale)
                .reshape([n, heads.key_heads, 1, heads.key_dim])
                .expand([n, heads.key_heads, group, heads.key_dim])
                .reshape([n, heads.value_heads, heads.key_dim])
        };
        let v = qkv.clone().narrow(1, 2 * heads.keys(), heads.values());
        Self {
            q: normed(0, (heads.key_dim as f64).powf(-0.5)),
            k: normed(heads.keys(), 1.0),
            v: v.reshape([n, heads.value_heads, heads.value_dim]),
            log_decay: inputs.log_decay.cast(inside),
            beta: inputs.beta.cast(inside),
        }
    }

    fn token(&self, t: usize) -> Self {
        let head_slice = |x: &Tensor<3>| x.clone().narrow(0, t, 1);
        let number = |x: &Tensor<2>| x.clone().narrow(0, t, 1);
        Self {
            q: head_slice(&self.q),
            k: head_slice(&self.k),
            v: head_slice(&self.v),
            log_decay: number(&self.log_decay),
            beta: number(&self.beta),
        }
    }

    /// One token per row: its output, and the state after it.
    fn step(self, state: Tensor<4>) -> (Tensor<3>, Tensor<4>) {
        let [b, heads, key_dim, value_dim] = state.dims();
        let state = state.mul(self.log_decay.exp().reshape([b, heads, 1, 1]));
        let stored = self.k.clone().reshape([b, heads, 1, key_dim]);
        let stored = stored.matmul(state.clone());
        let change = self.v.reshape([b, heads, 1, value_dim]).sub(stored);
        let change = change.mul(self.beta.reshape([b, heads, 1, 1]));
        let key = self.k.reshape([b, heads, key_dim, 1]);
        let state = state.add(key.matmul(change));
        let output = self.q.reshape([b, heads, 1, key_dim]).matmul(state.clone());
        (output.reshape([b, heads, value_dim]), state)
    }
}

/// Same contract as [`super::gated_delta_states`], differentiable; f64 inputs are computed in f64.
pub fn gated_delta(
    inputs: DeltaInputs,
    heads: DeltaHeads,
    documents: &Documents,
) -> (Tensor<3>, Tensor<4>) {
    let (dtype, device) = (inputs.qkv.dtype(), inputs.qkv.device());
    let prepared = Prepared::new(inputs, heads);
    let options = (&device, prepared.q.dtype());
    let (mut read, mut states) = (Vec::new(), Vec::new());
    for (start, length) in documents.spans() {
        let shape = [1, heads.value_heads, heads.key_dim, heads.value_dim];
        let mut state = Tensor::zeros(shape, options);
        for t in start..start + length {
            let output;
            (output, state) = prepared.token(t).step(state);
            read.push(output);
        }
        states.push(state);
    }
    let n_padding = documents.n_tokens() - documents.end();
    let padding = [n_padding, heads.value_heads, heads.value_dim];
    if n_padding > 0 {
        read.push(Tensor::zeros(padding, options));
    }
    (Tensor::cat(read, 0).cast(dtype), Tensor::cat(states, 0))
}

/// Same contract as [`super::decode`]; f64 inputs are computed in f64.
pub fn decode(inputs: DeltaInputs, heads: DeltaHeads, state: Tensor<4>) -> (Tensor<3>, Tensor<4>) {
    let dtype: DType = inputs.qkv.dtype();
    let (read, state) = Prepared::new(inputs, heads).step(state);
    (read.cast(dtype), state)
}
