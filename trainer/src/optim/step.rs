//! Updates the parameters with the gradient of a step.
//!
//! If the loss or the gradient norm is not finite, the update is skipped and reported.

use burn::tensor::Tensor;
use tooltune_kernels::adamw::{clip_factor, global_norm};
use tooltune_kernels::{AdamW, AdamWState, operation};

/// AdamW with its state and the clipping limit.
#[derive(Debug, Clone)]
pub struct Optimizer {
    /// Hyper-parameters.
    pub adamw: AdamW,
    /// The moments.
    pub state: AdamWState,
    /// Maximum global norm of a gradient; larger gradients are scaled down. 0 disables clipping.
    pub max_grad_norm: f64,
    /// Factor on each parameter's learning rate, `[p]`; `None` means 1 for all.
    pub rate_scales: Option<Tensor<1>>,
}

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StepOutcome {
    /// The parameters were updated; the norm is before clipping.
    Updated {
        /// Global norm of the gradient.
        grad_norm: f64,
    },
    /// Loss or norm was NaN or infinite; nothing was updated.
    NonFinite {
        /// Global norm of the gradient.
        grad_norm: f64,
    },
}

impl Optimizer {
    /// Creates an optimizer with zero moments for the parameters `[p]`.
    pub fn new(adamw: AdamW, max_grad_norm: f64, parameters: &Tensor<1>) -> Self {
        Self {
            adamw,
            state: AdamWState::new(parameters),
            max_grad_norm,
            rate_scales: None,
        }
    }

    /// Clips `gradient` by its global norm and updates the parameters.
    ///
    /// `gradient` is the gradient of the step's mean loss, `[p]`; `loss` is the mean loss.
    pub fn step(
        &mut self,
        parameters: &mut Tensor<1>,
        gradient: Tensor<1>,
        loss: f64,
        learning_rate: f64,
    ) -> StepOutcome {
        operation!("optimizer");
        let grad_norm = global_norm(&gradient);
        if !grad_norm.is_finite() || !loss.is_finite() {
            return StepOutcome::NonFinite { grad_norm };
        }
        let clips = self.max_grad_norm > 0.0;
        let gradient = match clip_factor(grad_norm, self.max_grad_norm) {
            factor if clips && factor < 1.0 => gradient.mul_scalar(factor),
            _ => gradient,
        };
        // Move the parameters out, so that they are not shared and can be updated in place.
        let before = std::mem::replace(parameters, gradient.clone());
        let state = &mut self.state;
        let scales = self.rate_scales.as_ref();
        *parameters = self
            .adamw
            .update_scaled(before, gradient, state, learning_rate, scales);
        StepOutcome::Updated { grad_norm }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    fn tensor(values: [f32; 2]) -> Tensor<1> {
        Tensor::from_data(TensorData::new(values.to_vec(), [2]), &Device::flex())
    }

    fn optimizer(parameters: &Tensor<1>) -> Optimizer {
        let adamw = AdamW {
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
        };
        Optimizer::new(adamw, 1.0, parameters)
    }

    /// Invariant: A loss that is not finite changes no weight and ends the run with its last good
    /// checkpoint.
    #[test]
    fn non_finite_gradients_change_nothing() {
        let values = |x: &Tensor<1>| x.to_data().iter::<f32>().collect::<Vec<f32>>();
        let mut parameters = tensor([1.0, -2.0]);
        let mut optimizer = optimizer(&parameters);
        for (gradient, loss) in [
            ([f32::NAN, 0.0], 1.0),
            ([f32::INFINITY, 0.0], 1.0),
            ([0.5, 0.5], f64::NAN),
            ([0.5, 0.5], f64::INFINITY),
        ] {
            let outcome = optimizer.step(&mut parameters, tensor(gradient), loss, 0.1);
            assert!(
                matches!(outcome, StepOutcome::NonFinite { .. }),
                "{gradient:?} {loss}"
            );
        }
        assert_eq!(values(&parameters), [1.0, -2.0]);
        assert_eq!(optimizer.state.step, 0);
        let outcome = optimizer.step(&mut parameters, tensor([3.0, 4.0]), 1.0, 0.1);
        assert_eq!(outcome, StepOutcome::Updated { grad_norm: 5.0 });
        assert_ne!(values(&parameters), [1.0, -2.0]);
    }
}
