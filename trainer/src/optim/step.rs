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
        Self { adamw, state: AdamWState::new(&adapters.flat), max_grad_norm }
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
        adapters.flat = self.adamw.update(flat, gradient, &mut self.state, learning_rate);
        StepOutcome::Updated { grad_norm }
    }
}
