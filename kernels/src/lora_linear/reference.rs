//! The adapted linear map in plain tensor operations.

use burn::tensor::Tensor;

use super::{Dropout, LoraFactors};

/// The contract is [`super::lora_linear`]'s.
pub fn lora_linear(
    x: Tensor<2>,
    weight: &Tensor<2>,
    bias: Option<&Tensor<1>>,
    adapter: Option<(&LoraFactors, Option<Dropout>)>,
) -> Tensor<2> {
    let mut y = x.clone().matmul(weight.clone().transpose());
    if let Some(bias) = bias {
        y = y.add(bias.clone().unsqueeze());
    }
    let Some((factors, dropout)) = adapter else {
        return y;
    };
    let input = match dropout {
        Some(Dropout(multiplier)) => x.mul(multiplier),
        None => x,
    };
    let low_rank = input.matmul(factors.a.clone().transpose());
    y.add(
        low_rank
            .mul_scalar(factors.scaling)
            .matmul(factors.b.clone().transpose()),
    )
}
