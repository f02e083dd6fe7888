//! AdamW in plain tensor operations.

use burn::tensor::Tensor;

use super::{AdamW, AdamWState};

/// Same contract as [`AdamW::update_scaled`].
pub fn update(
    adamw: &AdamW,
    [parameters, gradient]: [Tensor<1>; 2],
    state: &mut AdamWState,
    learning_rate: f64,
    scales: Option<&Tensor<1>>,
) -> Tensor<1> {
    state.step += 1;
    let m = state.first_moment.clone();
    state.first_moment = m
        .mul_scalar(adamw.beta1)
        .add(gradient.clone().mul_scalar(1.0 - adamw.beta1));
    let v = state.second_moment.clone();
    state.second_moment = v
        .mul_scalar(adamw.beta2)
        .add(gradient.square().mul_scalar(1.0 - adamw.beta2));
    let step = state.step as f64;
    let correction1 = 1.0 - adamw.beta1.powf(step);
    let correction2 = 1.0 - adamw.beta2.powf(step);
    let denominator = state
        .second_moment
        .clone()
        .sqrt()
        .div_scalar(correction2.sqrt())
        .add_scalar(adamw.eps);
    let update = state.first_moment.clone().div(denominator);
    let Some(scales) = scales else {
        return parameters
            .mul_scalar(1.0 - learning_rate * adamw.weight_decay)
            .sub(update.mul_scalar(learning_rate / correction1));
    };
    let decayed = scales
        .clone()
        .mul_scalar(-learning_rate * adamw.weight_decay);
    parameters.mul(decayed.add_scalar(1.0)).sub(
        update
            .mul(scales.clone())
            .mul_scalar(learning_rate / correction1),
    )
}
