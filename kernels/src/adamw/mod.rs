//! AdamW over one flat buffer that holds every adapter tensor.
//!
//! One buffer means one global norm, one update and one pair of moments to save, whatever the
//! number of adapted projections.

#[cfg(feature = "cube")]
pub mod cuda;

use burn::tensor::Tensor;

/// Hyper-parameters, with PyTorch's meaning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment, after its bias correction.
    pub eps: f64,
    /// Decoupled: the parameter shrinks by `learning_rate * weight_decay`.
    pub weight_decay: f64,
}

/// Moments of every parameter, and how many updates made them.
#[derive(Debug, Clone)]
pub struct AdamWState {
    /// `[p]`, f32.
    pub first_moment: Tensor<1>,
    /// `[p]`, f32.
    pub second_moment: Tensor<1>,
    /// Updates so far; an update that was skipped does not count.
    pub step: u64,
}

impl AdamWState {
    /// Zero moments for the parameters `[p]`.
    pub fn new(parameters: &Tensor<1>) -> Self {
        Self {
            first_moment: parameters.zeros_like(),
            second_moment: parameters.zeros_like(),
            step: 0,
        }
    }
}

impl AdamW {
    /// Returns the parameters after one update and moves the moments on.
    ///
    /// # Shapes
    ///
    /// - `parameters`, `gradient`: `[p]`, f32
    ///
    /// # Source
    ///
    /// `torch.optim.adamw`, `_single_tensor_adamw`, PyTorch 2.15, `amsgrad=False`.
    pub fn update(
        &self,
        parameters: Tensor<1>,
        gradient: Tensor<1>,
        state: &mut AdamWState,
        learning_rate: f64,
    ) -> Tensor<1> {
        state.step += 1;
        let m = state.first_moment.clone();
        state.first_moment = m
            .mul_scalar(self.beta1)
            .add(gradient.clone().mul_scalar(1.0 - self.beta1));
        let v = state.second_moment.clone();
        state.second_moment = v
            .mul_scalar(self.beta2)
            .add(gradient.square().mul_scalar(1.0 - self.beta2));
        let step = state.step as f64;
        let correction1 = 1.0 - self.beta1.powf(step);
        let correction2 = 1.0 - self.beta2.powf(step);
        let denominator = state
            .second_moment
            .clone()
            .sqrt()
            .div_scalar(correction2.sqrt())
            .add_scalar(self.eps);
        let update = state.first_moment.clone().div(denominator);
        parameters
            .mul_scalar(1.0 - learning_rate * self.weight_decay)
            .sub(update.mul_scalar(learning_rate / correction1))
    }
}

/// Euclidean norm of all gradients together, in f32 sums.
pub fn global_norm(gradient: &Tensor<1>) -> f64 {
    f64::from(gradient.clone().square().sum().into_scalar::<f32>()).sqrt()
}

/// Factor that brings a gradient of `norm` down to `max_norm`, 1 when it is below.
///
/// # Source
///
/// `torch.nn.utils.clip_grad_norm_`, PyTorch 2.15: `max_norm / (norm + 1e-6)`, at most 1.
pub fn clip_factor(norm: f64, max_norm: f64) -> f64 {
    (max_norm / (norm + 1e-6)).min(1.0)
}
