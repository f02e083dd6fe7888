//! Updates the adapters once by the gradients of a step's micro-batches.
//!
//! A non-finite loss or norm never reaches the parameters: the update is skipped and said so.

use burn::tensor::Tensor;
use tooltune_kernels::adamw::{clip_factor, global_norm};
use tooltune_kernels::{AdamW, AdamWState, operation};

/// AdamW with its state and the clipping threshold.
#[derive(Debug, Clone)]
pub struct Optimizer {
    /// Hyper-parameters.
    pub adamw: AdamW,
    /// Moments.
    pub state: AdamWState,
    /// Global norm above which gradients are scaled down; 0 does not clip.
    pub max_grad_norm: f64,
    /// What the learning rate of each parameter is multiplied by, `[p]`; 1 for all without it.
    pub rate_scales: Option<Tensor<1>>,
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StepOutcome {
    /// The adapters moved; the norm is that before clipping.
    Updated {
        /// Global norm of the gradient.
        grad_norm: f64,
    },
    /// The loss or the norm was NaN or infinite; nothing moved.
    NonFinite {
        /// Global norm of the gradient.
        grad_norm: f64,
    },
}

impl Optimizer {
    /// Zero moments for the parameters `[p]`.
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
    /// `gradient` is that of the mean loss of the step, `[p]`; `loss` the mean itself.
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
        // Taken out, so that parameters without other readers are changed where they lie.
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

    #[test]
    fn what_is_not_finite_moves_nothing() {
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
