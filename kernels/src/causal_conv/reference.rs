//! The short convolution in plain tensor operations.

use burn::tensor::{Tensor, TensorData, activation};

use crate::Documents;
use crate::route::arithmetic;

/// The contract is [`super::causal_conv`]'s; f64 is computed in f64.
pub fn causal_conv(x: Tensor<2>, weight: &Tensor<2>, documents: &Documents) -> Tensor<2> {
    let (dtype, device) = (x.dtype(), x.device());
    let inside = arithmetic(dtype);
    let x = x.cast(inside);
    let ([n, channels], k) = (x.dims(), weight.dims()[1]);
    let positions: Vec<usize> = super::positions(documents).collect();
    let of = |s: usize| {
        let weight = weight.clone().narrow(1, k - 1 - s, 1).cast(inside);
        weight.reshape([1, channels])
    };
    let mut sum = x.clone().mul(of(0));
    for s in 1..k.min(n) {
        let zeros = Tensor::zeros([s, channels], (&device, inside));
        let earlier = Tensor::cat(vec![zeros, x.clone().narrow(0, 0, n - s)], 0);
        let seen = positions
            .iter()
            .map(|&position| if position < s { 0.0 } else { 1.0f32 });
        let seen = TensorData::new(seen.collect::<Vec<f32>>(), [n, 1]);
        let seen = Tensor::<2>::from_data(seen, (&device, inside));
        sum = sum.add(earlier.mul(seen).mul(of(s)));
    }
    activation::silu(sum).cast(dtype)
}

/// The contract is [`super::of_last`]'s; f64 is computed in f64.
pub fn of_last(tokens: Tensor<3>, weight: &Tensor<2>) -> Tensor<2> {
    let dtype = tokens.dtype();
    let inside = arithmetic(dtype);
    let [b, k, channels] = tokens.dims();
    let weight = weight.clone().cast(inside).swap_dims(0, 1);
    let sum = tokens
        .cast(inside)
        .mul(weight.reshape([1, k, channels]))
        .sum_dim(1);
    activation::silu(sum.reshape([b, channels])).cast(dtype)
}
