//! A short causal convolution of each channel by itself, and `silu`; documents do not reach into each
//! other.

pub(crate) mod cpu;
pub mod reference;

use burn::backend::Flex;
use burn::tensor::{DType, Tensor};

use crate::Documents;
use crate::cpu::buffer::{plain, tensor};
use crate::cpu::number::with_number;
use crate::route::is_served_by_cpu;
use cpu::Taps;

/// `silu(Σ weight[:, k - 1 - s] x[t - s])` over the `k` tokens up to each one in its document.
///
/// # Shapes
///
/// - `x`: `[n, channels]`, f32 or bf16
/// - `weight`: `[channels, k]`, f32, frozen
/// - returns: `[n, channels]`, the dtype of `x`
///
/// The kernel is the CPU's, for tensors without a graph; others go to the reference.
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
    let positions: Vec<u32> = positions(documents).map(|i| i as u32).collect();
    let convolved = || {
        let weight = plain(&turned(weight), DType::F32)?;
        let taps = Taps {
            weight: weight.numbers(),
            channels,
            positions: &positions,
        };
        let read = is_served_by_cpu(&x).then(|| plain(&x, x.dtype()))??;
        Some(with_number!(x.dtype(), T => {
            tensor(cpu::forward::<T>(read.numbers(), taps), [n, channels])
        }))
    };
    match convolved() {
        Some(convolved) => Tensor::from_primitive::<Flex>(convolved),
        None => reference::causal_conv(x, weight, documents),
    }
}

/// The weights as the kernel reads them, `[k, channels]`.
pub(crate) fn turned(weight: &Tensor<2>) -> Tensor<2> {
    weight.clone().transpose()
}

/// Of each token how many of its document lie before it; of padding none.
pub(crate) fn positions(documents: &Documents) -> impl Iterator<Item = usize> {
    let n_padding = documents.n_tokens() - documents.end();
    let of_documents = documents.spans().flat_map(|(_, length)| 0..length);
    of_documents.chain(std::iter::repeat_n(0, n_padding))
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
