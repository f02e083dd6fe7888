//! A short depthwise causal convolution followed by `silu`, separately within each document.

pub(crate) mod cpu;
pub mod reference;

use burn::backend::Flex;
use burn::tensor::{DType, Tensor};

use crate::Documents;
use crate::cpu::buffer::{plain, tensor};
use crate::cpu::number::with_element_type;
use crate::route::is_served_by_cpu;
use cpu::Taps;

/// `silu(Σ weight[:, k - 1 - s] x[t - s])` over the last `k` tokens of the document, up to token
/// `t`.
///
/// # Shapes
///
/// - `x`: `[n, channels]`, f32 or bf16
/// - `weight`: `[channels, k]`, f32, frozen
/// - returns: `[n, channels]`, the dtype of `x`
///
/// The kernel runs on the CPU for tensors without an autodiff graph; all others use the reference.
///
/// # Panics
///
/// If the shapes do not match, or `documents` has a different number of tokens.
///
/// # Source
///
/// `causal_conv1d_fn` of `modeling_qwen3_5.py` of transformers 5.23.
pub fn causal_conv(x: Tensor<2>, weight: &Tensor<2>, documents: &Documents) -> Tensor<2> {
    let [n, channels] = x.dims();
    assert!(
        n == documents.n_tokens() && weight.dims()[0] == channels && weight.dims()[1] > 0,
        "causal_conv: [{n}, {channels}] does not match weights of shape {:?} and documents of {} tokens",
        weight.dims(),
        documents.n_tokens()
    );
    let positions: Vec<u32> = positions(documents).map(|i| i as u32).collect();
    let convolved = || {
        let weight = plain(&transposed_weight(weight), DType::F32)?;
        let taps = Taps {
            weight: weight.numbers(),
            channels,
            positions: &positions,
        };
        let input = is_served_by_cpu(&x).then(|| plain(&x, x.dtype()))??;
        Some(with_element_type!(x.dtype(), T => {
            tensor(cpu::forward::<T>(input.numbers(), taps), [n, channels])
        }))
    };
    match convolved() {
        Some(convolved) => Tensor::from_primitive::<Flex>(convolved),
        None => reference::causal_conv(x, weight, documents),
    }
}

/// The weights in the kernel's layout, `[k, channels]`.
pub(crate) fn transposed_weight(weight: &Tensor<2>) -> Tensor<2> {
    weight.clone().transpose()
}

/// For each token, the number of preceding tokens of its document; 0 for padding.
pub(crate) fn positions(documents: &Documents) -> impl Iterator<Item = usize> {
    let n_padding = documents.n_tokens() - documents.end();
    let in_documents = documents.spans().flat_map(|(_, length)| 0..length);
    in_documents.chain(std::iter::repeat_n(0, n_padding))
}

/// The convolution at the last of `k` tokens per row.
///
/// # Shapes
///
/// - `tokens`: `[b, k, channels]`, zeros for missing tokens
/// - `weight`: `[channels, k]`, f32
/// - returns: `[b, channels]`, the dtype of `tokens`
///
/// # Panics
///
/// If the shapes do not match.
pub fn decode(tokens: Tensor<3>, weight: &Tensor<2>) -> Tensor<2> {
    let [_, k, channels] = tokens.dims();
    assert_eq!(
        weight.dims(),
        [channels, k],
        "causal_conv: tokens and weights must have the same channels and width"
    );
    reference::decode(tokens, weight)
}
