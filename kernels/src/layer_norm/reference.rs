//! Layer norm in plain tensor operations.

use burn::tensor::Tensor;

/// Same contract as [`super::layer_norm`]; f64 inputs are computed in f64.
pub fn layer_norm(x: Tensor<2>, weight: &Tensor<1>, bias: &Tensor<1>, eps: f64) -> Tensor<2> {
    let centred = x.clone().sub(x.mean_dim(1));
    let variance = centred.clone().square().mean_dim(1);
    centred
        .div(variance.add_scalar(eps).sqrt())
        .mul(weight.clone().unsqueeze())
        .add(bias.clone().unsqueeze())
}
