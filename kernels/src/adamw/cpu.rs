//! AdamW on slices: one pass over parameters, gradient and both moments.

use rayon::prelude::*;

use super::AdamW;
use crate::cpu::isa::for_each_isa;

/// Elements of one task.
const TASK: usize = 1 << 15;

/// What an update computes with, rounded once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbers {
    /// `[beta1, beta2]`.
    decay: [f32; 2],
    /// `[1 - beta1, 1 - beta2]`.
    gain: [f32; 2],
    eps: f32,
    /// `1 - learning_rate * weight_decay`.
    shrink: f32,
    /// `learning_rate / (1 - beta1^step)`.
    step_size: f32,
    /// `sqrt(1 - beta2^step)`.
    root_correction: f32,
}

impl Numbers {
    /// For update number `step`, from 1.
    pub(super) fn new(adamw: &AdamW, step: u64, learning_rate: f64) -> Self {
        let correction = |beta: f64| 1.0 - beta.powf(step as f64);
        Self {
            decay: [adamw.beta1 as f32, adamw.beta2 as f32],
            gain: [(1.0 - adamw.beta1) as f32, (1.0 - adamw.beta2) as f32],
            eps: adamw.eps as f32,
            shrink: (1.0 - learning_rate * adamw.weight_decay) as f32,
            step_size: (learning_rate / correction(adamw.beta1)) as f32,
            root_correction: correction(adamw.beta2).sqrt() as f32,
        }
    }
}

/// New parameters and moments, from parameters, gradient and moments.
pub(super) fn update(numbers: Numbers, old: [&[f32]; 4]) -> [Vec<f32>; 3] {
    let n = old[0].len();
    let [mut parameters, mut first, mut second] = [0; 3].map(|_| vec![0.0f32; n]);
    let tasks = parameters
        .par_chunks_mut(TASK)
        .zip(first.par_chunks_mut(TASK))
        .zip(second.par_chunks_mut(TASK));
    tasks.enumerate().for_each(|(i, ((p, m), v))| {
        let range = i * TASK..i * TASK + p.len();
        update_part(numbers, old.map(|x| &x[range.clone()]), [p, m, v]);
    });
    [parameters, first, second]
}

for_each_isa! {
    fn update_part(numbers: Numbers, old: [&[f32]; 4], new: [&mut [f32]; 3]) {
        let n = old[0].len();
        let [parameters, gradient, first, second] = old.map(|x| &x[..n]);
        let [new_parameters, new_first, new_second] = new.map(|x| &mut x[..n]);
        for i in 0..n {
            let g = gradient[i];
            let m = first[i] * numbers.decay[0] + g * numbers.gain[0];
            let v = second[i] * numbers.decay[1] + g * g * numbers.gain[1];
            let denominator = v.sqrt() / numbers.root_correction + numbers.eps;
            new_first[i] = m;
            new_second[i] = v;
            new_parameters[i] = parameters[i] * numbers.shrink - m / denominator * numbers.step_size;
        }
    }
}
