//! Gradients of the micro-batches of a step to one update of the adapters.
//!
//! A non-finite loss or norm never reaches the parameters: the update is skipped and said so.

use burn::tensor::Tensor;
use tooltune_kernels::adamw::{clip_factor, global_norm};
use tooltune_kernels::{AdamW, AdamWState};

use crate::lora::Adapters;

/// AdamW with its state and the clipping threshold.
#[derive(Debug, Clone)]
pub struct Optimizer {
    /// Hyper-parameters.
    pub adamw: AdamW,
    /// Moments.
    pub state: AdamWState,
    /// Global norm above which gradients are scaled down.
    pub max_grad_norm: f64,
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
    /// Zero moments for `adapters`.
    pub fn new(adamw: AdamW, max_grad_norm: f64, adapters: &Adapters) -> Self {
        Self {
            adamw,
            state: AdamWState::new(&adapters.flat),
            max_grad_norm,
        }
    }

    /// Clips `gradient` by its global norm and updates the adapters.
    ///
    /// `gradient` is that of the mean loss of the step, `[p]`; `loss` the mean itself.
    pub fn step(
        &mut self,
        adapters: &mut Adapters,
        gradient: Tensor<1>,
        loss: f64,
        learning_rate: f64,
    ) -> StepOutcome {
        let grad_norm = global_norm(&gradient);
        if !grad_norm.is_finite() || !loss.is_finite() {
            return StepOutcome::NonFinite { grad_norm };
        }
        let gradient = match clip_factor(grad_norm, self.max_grad_norm) {
            1.0 => gradient,
            factor => gradient.mul_scalar(factor),
        };
        let flat = adapters.flat.clone();
        adapters.flat = self
            .adamw
            .update(flat, gradient, &mut self.state, learning_rate);
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

    fn optimizer(adapters: &Adapters) -> Optimizer {
        let adamw = AdamW {
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
        };
        Optimizer::new(adamw, 1.0, adapters)
    }

    #[test]
    fn what_is_not_finite_moves_nothing() {
        let mut adapters = Adapters {
            slots: vec![],
            flat: tensor([1.0, -2.0]),
        };
        let mut optimizer = optimizer(&adapters);
        for (gradient, loss) in [
            ([f32::NAN, 0.0], 1.0),
            ([f32::INFINITY, 0.0], 1.0),
            ([0.5, 0.5], f64::NAN),
            ([0.5, 0.5], f64::INFINITY),
        ] {
            let outcome = optimizer.step(&mut adapters, tensor(gradient), loss, 0.1);
            assert!(
                matches!(outcome, StepOutcome::NonFinite { .. }),
                "{gradient:?} {loss}"
            );
        }
        assert_eq!(adapters.to_values(), [1.0, -2.0]);
        assert_eq!(optimizer.state.step, 0);
        let outcome = optimizer.step(&mut adapters, tensor([3.0, 4.0]), 1.0, 0.1);
        assert_eq!(outcome, StepOutcome::Updated { grad_norm: 5.0 });
        assert_ne!(adapters.to_values(), [1.0, -2.0]);
    }
}
