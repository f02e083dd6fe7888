//! A short causal convolution of each channel by itself, and `silu`; documents do not reach into each
//! other.

pub mod reference;

use burn::tensor::Tensor;

use crate::Documents;

/// `silu(Σ weight[:, k - 1 - s] x[t - s])` over the `k` tokens up to each one in its document.
///
/// # Shapes
///
/// - `x`: `[n, channels]`, f32 or bf16
/// - `weight`: `[channels, k]`, f32, frozen
/// - returns: `[n, channels]`, the dtype of `x`
///
/// # Panics
///
/// If the shapes do not fit each other, or `documents` speak of another number of tokens.
///
/// # Source
///
/// `causal_conv1d_fn` of `modeling_qwen3_5.py` of transformers 5.23.
pub fn causal_conv(x: Tensor<2>, weight: &Tensor<2>, documents: &Documents) -> Tensor<2> {
    let [n, channels] = x.dims();
    assert!(
        n == documents.n_tokens() && weight.dims()[0] == channels && weight.dims()[1] > 0,
        "causal_conv: [{n}, {channels}] does not fit weights of {:?} and {} tokens",
        weight.dims(),
        documents.n_tokens()
    );
    reference::causal_conv(x, weight, documents)
}

/// The same of the last of `k` tokens a row.
///
/// # Shapes
///
/// - `tokens`: `[b, k, channels]`, zeros where a text has fewer
/// - `weight`: `[channels, k]`, f32
/// - returns: `[b, channels]`, the dtype of `tokens`
///
/// # Panics
///
/// If the shapes do not fit each other.
pub fn of_last(tokens: Tensor<3>, weight: &Tensor<2>) -> Tensor<2> {
    let [_, k, channels] = tokens.dims();
    assert_eq!(
        weight.dims(),
        [channels, k],
        "causal_conv: tokens and weights"
    );
    reference::of_last(tokens, weight)
}
