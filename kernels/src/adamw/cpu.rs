//! AdamW on slices: one in-place pass over parameters, gradient and both moments.
//!
//! The optimizer owns the moments, so they are updated in place. Parameters usually have other
//! readers (the LoRA factors are views of them); the same pass then writes the new parameters to
//! fresh memory.

use std::mem::MaybeUninit;

use burn::backend::flex::FlexTensor;

use super::Numbers;
use crate::cpu::buffer::{floats, into_owned, owns_whole_memory, with_layout_of};
use crate::cpu::isa::for_each_isa;
use crate::cpu::number::Number;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::{for_tasks, map_tasks};
use crate::cpu::shared::Shared;
use crate::cpu::sum::sum_of_pairs;

/// Elements per task.
const TASK: usize = 1 << 15;

/// Elements per chunk that is first copied and then updated while it is in the L1 cache.
const NEAR: usize = 1 << 11;

/// One AdamW step. The tensors are parameters, gradient, first and second moment, each `[p]`;
/// returns all but the gradient. `scales` multiply the learning rate of each parameter.
pub(super) fn update(
    numbers: Numbers,
    [mut parameters, gradient, first, second]: [FlexTensor; 4],
    scales: Option<&FlexTensor>,
) -> [FlexTensor; 3] {
    let [mut first, mut second] = [first, second].map(into_owned::<f32>);
    let pass = Pass {
        numbers,
        gradient: floats(&gradient),
        scales: scales.map(floats),
        moments: [&mut first, &mut second].map(|x| Shared::new(f32::storage_mut(x))),
    };
    if owns_whole_memory(&parameters) {
        let to = f32::storage_mut(&mut parameters);
        // SAFETY: the floats are initialised, and only initialised values are written.
        let to = unsafe { &mut *(std::ptr::from_mut(to) as *mut [MaybeUninit<f32>]) };
        pass.run(None, to);
    } else {
        let from = floats(&parameters);
        // SAFETY: the pass copies every element.
        let to = unsafe { Buffer::filled(from.len(), |to| pass.run(Some(from), to)) };
        parameters = with_layout_of(to, &parameters);
    }
    [parameters, first, second]
}

/// Inputs of a pass other than the parameters.
struct Pass<'a> {
    numbers: Numbers,
    gradient: &'a [f32],
    scales: Option<&'a [f32]>,
    moments: [Shared<'a>; 2],
}

impl Numbers {
    /// Updates both moments of a parameter and returns the direction of its step.
    #[inline(always)]
    fn direction(&self, gradient: f32, first: &mut f32, second: &mut f32) -> f32 {
        *first = *first * self.decay[0] + gradient * self.gain[0];
        *second = *second * self.decay[1] + gradient * gradient * self.gain[1];
        *first / (second.sqrt() * self.root_correction + self.eps)
    }
}

impl Pass<'_> {
    /// Updates `parameters` from `from`, or in place if there is no `from`.
    fn run(&self, from: Option<&[f32]>, parameters: &mut [MaybeUninit<f32>]) {
        let n = parameters.len();
        let parameters = Shared::new(parameters);
        let tasks: Vec<usize> = (0..n).step_by(TASK).collect();
        for_tasks(&tasks, |&task| {
            for start in (task..(task + TASK).min(n)).step_by(NEAR) {
                let len = NEAR.min(n - start);
                // SAFETY: tasks work on disjoint ranges; the parameters are initialised before the
                // pass or by the copy.
                unsafe {
                    let to = parameters.slice(start, len);
                    if let Some(from) = from {
                        to.write_copy_of_slice(&from[start..start + len]);
                    }
                    let to = to.assume_init_mut();
                    let [first, second] = [0, 1].map(|i| self.moments[i].slice(start, len));
                    let gradient = &self.gradient[start..start + len];
                    let changed = [to, first, second];
                    match self.scales {
                        None => update_part(self.numbers, gradient, changed),
                        Some(scales) => {
                            let scales = &scales[start..start + len];
                            update_scaled_part(self.numbers, [gradient, scales], changed);
                        }
                    }
                }
            }
        });
    }
}

/// `Σ xᵢ²`, in f32 within a task and in f64 over tasks; the summation order does not depend on
/// threads.
pub(super) fn sum_of_squares(x: &[f32]) -> f64 {
    let tasks: Vec<&[f32]> = x.chunks(TASK).collect();
    let partial = map_tasks(&tasks, |x| f64::from(squares(x)));
    partial.into_iter().sum()
}

/// Concatenates all parts.
pub(super) fn concatenate(parts: &[&[f32]]) -> Buffer<f32> {
    let mut start = 0;
    let mut tasks = Vec::new();
    for part in parts {
        for from in part.chunks(TASK) {
            tasks.push((start, from));
            start += from.len();
        }
    }
    // SAFETY: the tasks are disjoint and cover all elements.
    unsafe {
        Buffer::filled(start, |to| {
            let to = Shared::new(to);
            for_tasks(&tasks, |&(start, from)| {
                to.slice(start, from.len()).write_copy_of_slice(from);
            });
        })
    }
}

for_each_isa! {
    fn squares(x: &[f32]) -> f32 {
        sum_of_pairs(x, x, |a, b| a * b)
    }
}

for_each_isa! {
    /// Updates parameters and both moments in place.
    fn update_part(numbers: Numbers, gradient: &[f32], changed: [&mut [f32]; 3]) {
        let n = gradient.len();
        let [parameters, first, second] = changed.map(|x| &mut x[..n]);
        for i in 0..n {
            let direction = numbers.direction(gradient[i], &mut first[i], &mut second[i]);
            parameters[i] = parameters[i] * numbers.shrink - direction * numbers.step_size;
        }
    }
}

for_each_isa! {
    /// Like `update_part`, with a learning-rate scale per parameter.
    fn update_scaled_part(numbers: Numbers, read: [&[f32]; 2], changed: [&mut [f32]; 3]) {
        let n = read[0].len();
        let [gradient, scales] = read.map(|x| &x[..n]);
        let [parameters, first, second] = changed.map(|x| &mut x[..n]);
        for i in 0..n {
            let direction = numbers.direction(gradient[i], &mut first[i], &mut second[i]);
            let shrink = 1.0 - numbers.decayed * scales[i];
            let size = numbers.step_size * scales[i];
            parameters[i] = parameters[i] * shrink - direction * size;
        }
    }
}
