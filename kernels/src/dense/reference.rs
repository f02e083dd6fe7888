//! The trained linear layer in plain tensor operations.

use burn::tensor::{DType, Tensor, activation};

use super::InputTransform;
use crate::route::arithmetic;

/// Same contract as [`super::dense`], with weight, bias and output dtype as arguments.
pub fn dense(
    x: Tensor<2>,
    weight: &Tensor<2>,
    bias: &Tensor<1>,
    residual: Option<Tensor<2>>,
    transform: InputTransform,
    output: DType,
) -> Tensor<2> {
    let dtype = arithmetic(x.dtype());
    let x = x.cast(dtype);
    let input = match transform {
        InputTransform::Plain => x,
        InputTransform::Gelu => activation::gelu(x),
    };
    // Products read elements of the layer's dtype, whatever dtype they accumulate in.
    let [input, weight] = [input, weight.clone()].map(|x| x.cast(output).cast(dtype));
    let y = input.matmul(weight.transpose());
    let y = y.add(bias.clone().cast(dtype).unsqueeze());
    match residual {
        Some(residual) => y.add(residual.cast(dtype)),
        None => y.cast(output),
    }
}
