//! A linear layer of the decoder: a frozen weight, an optional bias, and a slot for an adapter.
//!
//! Model files hold projections and know nothing else of LoRA.

use burn::tensor::Tensor;
use tooltune_kernels::lora_linear::{LoraFactors, lora_linear};

use crate::lora::DropoutKey;

/// `x Wᵀ + bias`, plus the adapter when one is attached.
#[derive(Debug, Clone)]
pub struct Projection {
    /// `[out, in]`, frozen.
    pub weight: Tensor<2>,
    /// `[out]`, frozen.
    pub bias: Option<Tensor<1>>,
    /// Trainable factors.
    pub adapter: Option<LoraFactors>,
}

impl Projection {
    /// A projection without an adapter.
    pub fn new(weight: Tensor<2>, bias: Option<Tensor<1>>) -> Self {
        Self {
            weight,
            bias,
            adapter: None,
        }
    }

    /// Input and output features.
    pub fn features(&self) -> (usize, usize) {
        let [out_features, in_features] = self.weight.dims();
        (in_features, out_features)
    }

    /// # Shapes
    ///
    /// - `x`: `[n, in]` to `[n, out]`
    pub fn forward(&self, x: Tensor<2>, dropout: Option<DropoutKey>) -> Tensor<2> {
        let adapter = self.adapter.as_ref().map(|factors| {
            let multiplier = dropout.and_then(|key| key.multiplier(x.dims(), &x.device()));
            (factors, multiplier)
        });
        lora_linear(x, &self.weight, self.bias.as_ref(), adapter)
    }
}
