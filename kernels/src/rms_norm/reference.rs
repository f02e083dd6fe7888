//! RMSNorm in plain tensor operations.

use burn::tensor::Tensor;

/// The contract is [`super::rms_norm`]'s.
pub fn rms_norm(x: Tensor<2>, weight: &Tensor<1>, eps: f64) -> Tensor<2> {
    let mean_square = x.clone().square().mean_dim(1);
    let inverse_rms = mean_square.add_scalar(eps).sqrt().recip();
    x.mul(inverse_rms).mul(weight.clone().unsqueeze())
}
