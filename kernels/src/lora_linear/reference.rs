//! Stacked LoRA linear layers in plain tensor operations, in f32, or in f64 for f64 inputs.

use burn::tensor::{DType, Tensor};

use super::{InputTransform, LinearExtras, StackedLinear};
use crate::rms_norm::reference::rms_norm;
use crate::route::arithmetic;
use crate::swiglu::reference::swiglu;

/// Same contract as [`super::lora_linear`].
pub fn lora_linear(x: Tensor<2>, linear: &StackedLinear, extras: LinearExtras) -> Tensor<2> {
    let x = transform_input(x, &extras.transform, linear);
    let output = x.dtype();
    let device = x.device();
    let dtype = arithmetic(output);
    let x = x.cast(dtype);
    let weight = linear.weight.to_tensor().cast(dtype);
    let mut y = x.clone().matmul(weight.transpose());
    if let Some(bias) = &linear.bias {
        y = y.add(bias.clone().cast(dtype).unsqueeze());
    }
    let mut layers: Vec<Tensor<2>> = Vec::with_capacity(linear.out_features.len());
    let mut first = 0;
    for (layer, &out_features) in linear.out_features.iter().enumerate() {
        let mut part = y.clone().narrow(1, first, out_features);
        if let Some((a, b, mut scaling)) = factors_of(linear, layer) {
            let mut input = x.clone();
            if let Some(dropout) = extras.dropout.get(layer).copied().flatten() {
                scaling *= dropout.scale();
                input = input.mul(dropout.mask(x.dims(), &device).cast(dtype));
            }
            let low = input.matmul(a.cast(dtype).transpose()).mul_scalar(scaling);
            part = part.add(low.matmul(b.cast(dtype).transpose()));
        }
        layers.push(part);
        first += out_features;
    }
    let y = Tensor::cat(layers, 1);
    match extras.residual {
        Some(residual) => y.add(residual),
        None => y.cast(output),
    }
}

/// The transformed input of the layers of `linear`.
pub(super) fn transform_input(
    x: Tensor<2>,
    transform: &InputTransform,
    linear: &StackedLinear,
) -> Tensor<2> {
    match transform {
        InputTransform::Plain => x,
        InputTransform::Normed { weight, eps } => {
            let output = match x.dtype() {
                DType::F64 => DType::F64,
                _ => linear.weight.compute_dtype().dtype(),
            };
            rms_norm(x, weight.as_ref(), *eps, output)
        }
        InputTransform::Gated => swiglu(x),
    }
}

/// A, B and the scaling of a layer's adapter.
fn factors_of(linear: &StackedLinear, layer: usize) -> Option<(Tensor<2>, Tensor<2>, f32)> {
    let adapter = linear.adapter.as_ref()?;
    let part = adapter
        .layout()
        .parts
        .iter()
        .find(|part| part.layer == layer)?;
    let (a, b) = adapter.factors_of(part);
    Some((a, b, part.scaling))
}
