//! RMSNorm in plain tensor operations.

use burn::tensor::{DType, Tensor};

use crate::route::arithmetic;

/// Same contract as [`super::rms_norm`]; f64 inputs are computed in f64.
pub fn rms_norm(x: Tensor<2>, weight: &Tensor<1>, eps: f64, output: DType) -> Tensor<2> {
    let inside = arithmetic(x.dtype());
    let x = x.cast(inside);
    let mean_square = x.clone().square().mean_dim(1);
    let inverse_rms = mean_square.add_scalar(eps).sqrt().recip();
    x.mul(inverse_rms)
        .mul(weight.clone().cast(inside).unsqueeze())
        .cast(output)
}
