//! AdamW over one flat buffer that holds every adapter tensor.
//!
//! One buffer means one global norm, one update and one pair of moments to save, whatever the
//! number of adapted projections.

mod cpu;
#[cfg(feature = "cube")]
pub mod cuda;
pub mod reference;

use burn::tensor::{DType, Tensor, TensorData};

use crate::cpu::buffer::plain;

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
        let device = parameters.device();
        let inputs = [
            &parameters,
            &gradient,
            &state.first_moment,
            &state.second_moment,
        ]
        .map(|x| plain(x, DType::F32));
        #[cfg(feature = "cube")]
        if let Some(parameters) = cuda::update(self, (&parameters, &gradient), state, learning_rate)
        {
            return parameters;
        }
        let [Some(p), Some(g), Some(m), Some(v)] = &inputs else {
            return reference::update(self, parameters, gradient, state, learning_rate);
        };
        state.step += 1;
        let numbers = cpu::Numbers::new(self, state.step, learning_rate);
        let updated = cpu::update(numbers, [p, g, m, v].map(|x| x.numbers()));
        let [parameters, first, second] = updated.map(|values| {
            let n = values.len();
            Tensor::from_data(TensorData::new(values, [n]), &device)
        });
        (state.first_moment, state.second_moment) = (first, second);
        parameters
    }
}

/// Euclidean norm of all gradients together, in f32 sums.
pub fn global_norm(gradient: &Tensor<1>) -> f64 {
    #[cfg(feature = "cube")]
    if let Some(norm) = cuda::norm_of(gradient) {
        return norm;
    }
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
