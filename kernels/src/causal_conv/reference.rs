//! The short convolution in plain tensor operations.

use burn::tensor::{Tensor, TensorData, activation};

use crate::Documents;
use crate::route::arithmetic;

/// Same contract as [`super::causal_conv`]; f64 inputs are computed in f64.
pub fn causal_conv(x: Tensor<2>, weight: &Tensor<2>, documents: &Documents) -> Tensor<2> {
    let (dtype, device) = (x.dtype(), x.device());
    let inside = arithmetic(dtype);
    let x = x.cast(inside);
    let ([n, channels], k) = (x.dims(), weight.dims()[1]);
    let positions: Vec<usize> = super::positions(documents).collect();
    let tap = |s: usize| {
        let weight = weight.clone().narrow(1, k - 1 - s, 1).cast(inside);
        weight.reshape([1, channels])
    };
    let mut sum = x.clone().mul(tap(0));
    for s in 1..k.min(n) {
        let zeros = Tensor::zeros([s, channels], (&device, inside));
        let earlier = Tensor::cat(vec![zeros, x.clone().narrow(0, 0, n - s)], 0);
        let visible = positions
            .iter()
            .map(|&position| if position < s { 0.0 } else { 1.0f32 });
        let visible = TensorData::new(visible.collect::<Vec<f32>>(), [n, 1]);
        let visible = Tensor::<2>::from_data(visible, (&device, inside));
        sum = sum.add(earlier.mul(visible).mul(tap(s)));
    }
    activation::silu(sum).cast(dtype)
}

/// Same contract as [`super::decode`]; f64 inputs are computed in f64.
pub fn decode(tokens: Tensor<3>, weight: &Tensor<2>) -> Tensor<2> {
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
