//! Layer norm as an operation of the CPU backend, with its backward pass.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, backend_extension};

use super::cpu;
use crate::cpu::buffer::{contiguous, dims, floats, tensor};
use crate::with_backward::with_backward;

/// Operation that a backend implements itself.
#[backend_extension(Autodiff, Flex)]
pub(crate) trait LayerNormOps: Backend {
    /// Same contract as [`super::layer_norm`].
    fn trained_layer_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        eps: f32,
    ) -> FloatTensor<Self>;
}

/// Result of a forward pass.
#[derive(Debug, Clone)]
pub(crate) struct Normed<B: Backend> {
    y: FloatTensor<B>,
    /// Inverse standard deviation of each input row, `[n]`.
    scales: FloatTensor<B>,
    /// Whether the backward pass can use the output instead of the input.
    is_invertible: bool,
}

/// Source of the normalised rows.
#[derive(Debug, Clone)]
enum SavedActivation<B: Backend> {
    Input(FloatTensor<B>),
    /// The output, which the next layer stores anyway, and its scales.
    Output([FloatTensor<B>; 2]),
}

/// Inputs of the backward pass other than the gradient of the output.
#[derive(Debug, Clone)]
pub(crate) struct Saved<B: Backend> {
    kept: SavedActivation<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    eps: f32,
}

/// Both passes, on tensors that are not part of an autodiff graph.
pub(crate) trait LayerNormGradients: LayerNormOps {
    /// The forward pass, with the state for the backward pass.
    fn layer_norm_forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        eps: f32,
    ) -> Normed<Self>;

    /// Gradients of `x`, weight and bias.
    fn layer_norm_gradients(saved: Saved<Self>, dy: FloatTensor<Self>) -> [FloatTensor<Self>; 3];
}

impl LayerNormOps for Flex {
    fn trained_layer_norm(
        x: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        eps: f32,
    ) -> FlexTensor {
        Self::layer_norm_forward(x, weight, bias, eps).y
    }
}

impl LayerNormGradients for Flex {
    fn layer_norm_forward(
        x: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        eps: f32,
    ) -> Normed<Self> {
        let [x, weight, bias] = [x, weight, bias].map(contiguous);
        let (weight, bias) = (floats(&weight), floats(&bias));
        let [n, d] = dims::<2>(&x);
        let [y, scales] = cpu::layer_norm(floats(&x), weight, bias, eps);
        Normed {
            y: tensor(y, [n, d]),
            scales: tensor(scales, [n]),
            is_invertible: cpu::is_invertible(weight, bias),
        }
    }

    fn layer_norm_gradients(saved: Saved<Self>, dy: FlexTensor) -> [FlexTensor; 3] {
        let [weight, bias, dy] = [saved.weight, saved.bias, dy].map(contiguous);
        let [n, d] = dims(&dy);
        let numbers =
            |kept| cpu::layer_norm_gradients(kept, floats(&weight), saved.eps, floats(&dy));
        let [dx, d_weight, d_bias] = match saved.kept {
            SavedActivation::Input(x) => {
                numbers(cpu::SavedActivation::Input(floats(&contiguous(x))))
            }
            SavedActivation::Output(kept) => {
                let [y, scales] = kept.map(contiguous);
                numbers(cpu::SavedActivation::Output(
                    floats(&y),
                    floats(&scales),
                    floats(&bias),
                ))
            }
        };
        [
            tensor(dx, [n, d]),
            tensor(d_weight, [d]),
            tensor(d_bias, [d]),
        ]
    }
}

impl<B: LayerNormGradients, C: CheckpointStrategy> LayerNormOps for Autodiff<B, C> {
    fn trained_layer_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        eps: f32,
    ) -> FloatTensor<Self> {
        let inputs = [x.node(), weight.node(), bias.node()];
        let [x, weight, bias] = [x, weight, bias].map(|tensor| tensor.into_primitive());
        let normed = B::layer_norm_forward(x.clone(), weight.clone(), bias.clone(), eps);
        let y = normed.y.clone();
        let kept = if normed.is_invertible {
            SavedActivation::Output([normed.y, normed.scales])
        } else {
            SavedActivation::Input(x)
        };
        let saved = Saved {
            kept,
            weight,
            bias,
            eps,
        };
        with_backward::<B, C, _, _>(inputs, y, move |dy, _| {
            crate::operation!("layer_norm backward");
            B::layer_norm_gradients(saved, dy).map(Some)
        })
    }
}
