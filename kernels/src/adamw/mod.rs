//! AdamW over one flat buffer that holds every adapter tensor.
//!
//! With one buffer there is one global norm, one update and one pair of moments to save, however
//! many projections are adapted.

mod cpu;
#[cfg(feature = "cube")]
pub mod cuda;
pub mod reference;

use burn::backend::Flex;
use burn::tensor::{DType, Tensor};

use crate::cpu::buffer::{contiguous, plain, tensor};
use crate::route::is_served_by_cpu;
#[cfg(feature = "cube")]
use crate::route::is_served_by_gpu;

/// Hyper-parameters, defined as in PyTorch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the square root of the bias-corrected second moment.
    pub eps: f64,
    /// Decoupled weight decay: each update multiplies the parameters by `1 - learning_rate *
    /// weight_decay`.
    pub weight_decay: f64,
}

/// Moments of all parameters, and the number of updates.
#[derive(Debug, Clone)]
pub struct AdamWState {
    /// `[p]`, f32.
    pub first_moment: Tensor<1>,
    /// `[p]`, f32.
    pub second_moment: Tensor<1>,
    /// Number of updates so far; skipped updates are not counted.
    pub step: u64,
}

impl AdamWState {
    /// Zero moments for `p` parameters.
    pub fn new(parameters: &Tensor<1>) -> Self {
        Self {
            first_moment: parameters.zeros_like(),
            second_moment: parameters.zeros_like(),
            step: 0,
        }
    }
}

/// Coefficients of one update, computed in f64 and rounded once.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    /// `[beta1, beta2]`.
    decay: [f32; 2],
    /// `[1 - beta1, 1 - beta2]`; computed in f32, the difference would be wrong in its fourth
    /// digit.
    gain: [f32; 2],
    eps: f32,
    /// `learning_rate * weight_decay`.
    decayed: f32,
    /// `1 - learning_rate * weight_decay`.
    shrink: f32,
    /// `learning_rate / (1 - beta1^step)`.
    step_size: f32,
    /// `1 / sqrt(1 - beta2^step)`.
    root_correction: f32,
}

impl Numbers {
    /// Coefficients of update number `step`, from 1.
    fn new(adamw: &AdamW, step: u64, learning_rate: f64) -> Self {
        let correction = |beta: f64| 1.0 - beta.powf(step as f64);
        Self {
            decay: [adamw.beta1 as f32, adamw.beta2 as f32],
            gain: [(1.0 - adamw.beta1) as f32, (1.0 - adamw.beta2) as f32],
            eps: adamw.eps as f32,
            decayed: (learning_rate * adamw.weight_decay) as f32,
            shrink: (1.0 - learning_rate * adamw.weight_decay) as f32,
            step_size: (learning_rate / correction(adamw.beta1)) as f32,
            root_correction: correction(adamw.beta2).sqrt().recip() as f32,
        }
    }
}

impl AdamW {
    /// Returns the updated parameters, and updates the moments and the step count.
    ///
    /// Values are not checked: a NaN or infinite gradient element permanently corrupts its own
    /// parameter and moments (no others), and the step is still counted. Call [`global_norm`] first
    /// and skip the update if the norm is not finite.
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
        self.update_scaled(parameters, gradient, state, learning_rate, None)
    }

    /// [`update`](Self::update) with a learning rate per parameter: `learning_rate` times its
    /// element of `scales`, or `learning_rate` itself without scales. Weight decay uses the same
    /// rate.
    ///
    /// With scales, a GPU computes the update from plain tensor operations.
    ///
    /// # Shapes
    ///
    /// - `scales`: `[p]`, f32
    pub fn update_scaled(
        &self,
        parameters: Tensor<1>,
        gradient: Tensor<1>,
        state: &mut AdamWState,
        learning_rate: f64,
        scales: Option<&Tensor<1>>,
    ) -> Tensor<1> {
        crate::operation!("adamw");
        let inputs = [
            &parameters,
            &gradient,
            &state.first_moment,
            &state.second_moment,
        ];
        #[cfg(feature = "cube")]
        if scales.is_none() && inputs.into_iter().all(are_floats_on_gpu) {
            return cuda::update(self, [parameters, gradient], state, learning_rate);
        }
        let is_on_cpu =
            |x: &Tensor<1>| is_served_by_cpu(x) && x.dtype() == DType::F32 && !x.is_autodiff();
        if !inputs.into_iter().chain(scales).all(is_on_cpu) {
            return reference::update(self, [parameters, gradient], state, learning_rate, scales);
        }
        state.step += 1;
        let numbers = Numbers::new(self, state.step, learning_rate);
        // Take the moments out of the state, so that they have a single owner and can be updated in
        // place.
        let moments = [&mut state.first_moment, &mut state.second_moment]
            .map(|moment| std::mem::replace(moment, gradient.clone()));
        let [first, second] = moments;
        let primitive =
            |x: Tensor<1>| contiguous(x.try_into_primitive::<Flex>().expect("a tensor on the CPU"));
        let tensors = [parameters, gradient, first, second].map(primitive);
        let scales = scales.map(|scales| primitive(scales.clone()));
        let updated = cpu::update(numbers, tensors, scales.as_ref());
        let [parameters, first, second] = updated.map(Tensor::from_primitive::<Flex>);
        (state.first_moment, state.second_moment) = (first, second);
        parameters
    }
}

/// Whether the GPU kernels support the tensor.
#[cfg(feature = "cube")]
fn are_floats_on_gpu(x: &Tensor<1>) -> bool {
    is_served_by_gpu(x) && x.dtype() == DType::F32
}

/// Euclidean norm of the concatenated gradients.
pub fn global_norm(gradient: &Tensor<1>) -> f64 {
    crate::operation!("global_norm");
    #[cfg(feature = "cube")]
    if are_floats_on_gpu(gradient) {
        return cuda::global_norm(gradient);
    }
    match plain(gradient, DType::F32) {
        Some(gradient) => cpu::sum_of_squares(gradient.numbers()).sqrt(),
        None => f64::from(gradient.clone().square().sum().into_scalar::<f32>()).sqrt(),
    }
}

/// Concatenates tensors: the gradient of the flat buffer from the gradients of its parts.
///
/// # Shapes
///
/// - `parts`: f32, any shapes
/// - returns: `[p]`, the sum of their sizes
pub fn concatenate(parts: Vec<Tensor<2>>) -> Tensor<1> {
    let plain: Option<Vec<_>> = parts.iter().map(|part| plain(part, DType::F32)).collect();
    match plain {
        Some(plain) => {
            let numbers: Vec<&[f32]> = plain.iter().map(|part| part.numbers()).collect();
            let joined = cpu::concatenate(&numbers);
            let n = joined.len();
            Tensor::from_primitive::<Flex>(tensor(joined, [n]))
        }
        None => Tensor::cat(
            parts.into_iter().map(|part| part.flatten(0, 1)).collect(),
            0,
        ),
    }
}

/// Factor that scales a gradient of `norm` down to `max_norm`; 1 if the norm is smaller.
///
/// # Source
///
/// `torch.nn.utils.clip_grad_norm_`, PyTorch 2.15: `max_norm / (norm + 1e-6)`, at most 1.
pub fn clip_factor(norm: f64, max_norm: f64) -> f64 {
    (max_norm / (norm + 1e-6)).min(1.0)
}
