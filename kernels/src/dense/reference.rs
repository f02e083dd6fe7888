//! The trained map in plain tensor operations.

use burn::tensor::{DType, Tensor, activation};

use super::InputTransform;
use crate::route::arithmetic;

/// The contract is [`super::dense`]'s, with the weight, the bias and the type of the output given.
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
    let read = match transform {
        InputTransform::Plain => x,
        InputTransform::Gelu => activation::gelu(x),
    };
    // Products read numbers of the map's type, whatever they are summed in.
    let [read, weight] = [read, weight.clone()].map(|x| x.cast(output).cast(dtype));
    let y = read.matmul(weight.transpose());
    let y = y.add(bias.clone().cast(dtype).unsqueeze());
    match residual {
        Some(residual) => y.add(residual.cast(dtype)),
        None => y.cast(output),
    }
}
