//! AdamW on slices: one pass over parameters, gradient and both moments, where they lie.
//!
//! Moments belong to the optimizer and are changed in place. Parameters usually have readers, the
//! factors that were cut out of them; then the new ones get memory of their own, in the same pass.

use std::mem::MaybeUninit;

use burn::backend::flex::FlexTensor;

use super::Numbers;
use crate::cpu::buffer::{floats, is_own, owned, with_layout_of};
use crate::cpu::isa::for_each_isa;
use crate::cpu::number::Number;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::{for_tasks, map_tasks};
use crate::cpu::shared::Shared;
use crate::cpu::sum::sum_of_pairs;

/// Elements of one task.
const TASK: usize = 1 << 15;

/// Elements that stay in the nearest cache between their copy and their update.
const NEAR: usize = 1 << 11;

/// Parameters, gradient and moments, `[p]`, to new parameters and moments; `scales` multiply the
/// learning rate of each parameter.
pub(super) fn update(
    numbers: Numbers,
    [mut parameters, gradient, first, second]: [FlexTensor; 4],
    scales: Option<&FlexTensor>,
) -> [FlexTensor; 3] {
    let [mut first, mut second] = [first, second].map(owned::<f32>);
    let pass = Pass {
        numbers,
        gradient: floats(&gradient),
        scales: scales.map(floats),
        moments: [&mut first, &mut second].map(|x| Shared::new(f32::storage_mut(x))),
    };
    if is_own(&parameters) {
        let to = f32::storage_mut(&mut parameters);
        // SAFETY: initialised floats, and none of those that are written is not.
        let to = unsafe { &mut *(std::ptr::from_mut(to) as *mut [MaybeUninit<f32>]) };
        pass.run(None, to);
    } else {
        let from = floats(&parameters);
        // SAFETY: all are copied.
        let to = unsafe { Buffer::filled(from.len(), |to| pass.run(Some(from), to)) };
        parameters = with_layout_of(to, &parameters);
    }
    [parameters, first, second]
}

/// What a pass over the parameters reads and changes besides them.
struct Pass<'a> {
    numbers: Numbers,
    gradient: &'a [f32],
    scales: Option<&'a [f32]>,
    moments: [Shared<'a>; 2],
}

impl Pass<'_> {
    /// Moves `parameters` on; without `from`, they hold their old values.
    fn run(&self, from: Option<&[f32]>, parameters: &mut [MaybeUninit<f32>]) {
        let n = parameters.len();
        let parameters = Shared::new(parameters);
        let tasks: Vec<usize> = (0..n).step_by(TASK).collect();
        for_tasks(&tasks, |&task| {
            for start in (task..(task + TASK).min(n)).step_by(NEAR) {
                let len = NEAR.min(n - start);
                // SAFETY: the parts of all tasks are disjoint; parameters are initialised, by
                // the copy at the latest.
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

/// `Σ xᵢ²`, in f32 within a task and in f64 over tasks, in an order that no thread changes.
pub(super) fn sum_of_squares(x: &[f32]) -> f64 {
    let tasks: Vec<&[f32]> = x.chunks(TASK).collect();
    let partial = map_tasks(&tasks, |x| f64::from(squares(x)));
    partial.into_iter().sum()
}

/// All parts, one behind the other.
pub(super) fn joined(parts: &[&[f32]]) -> Buffer<f32> {
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
    /// Parameters and both moments, in their place.
    fn update_part(numbers: Numbers, gradient: &[f32], changed: [&mut [f32]; 3]) {
        let n = gradient.len();
        let [parameters, first, second] = changed.map(|x| &mut x[..n]);
        for i in 0..n {
            let g = gradient[i];
            let m = first[i] * numbers.decay[0] + g * numbers.gain[0];
            let v = second[i] * numbers.decay[1] + g * g * numbers.gain[1];
            first[i] = m;
            second[i] = v;
            let denominator = v.sqrt() * numbers.root_correction + numbers.eps;
            parameters[i] = parameters[i] * numbers.shrink - m / denominator * numbers.step_size;
        }
    }
}

for_each_isa! {
    /// The same with a rate for each parameter.
    fn update_scaled_part(numbers: Numbers, read: [&[f32]; 2], changed: [&mut [f32]; 3]) {
        let n = read[0].len();
        let [gradient, scales] = read.map(|x| &x[..n]);
        let [parameters, first, second] = changed.map(|x| &mut x[..n]);
        for i in 0..n {
            let g = gradient[i];
            let m = first[i] * numbers.decay[0] + g * numbers.gain[0];
            let v = second[i] * numbers.decay[1] + g * g * numbers.gain[1];
            first[i] = m;
            second[i] = v;
            let denominator = v.sqrt() * numbers.root_correction + numbers.eps;
            let shrink = 1.0 - numbers.decayed * scales[i];
            let size = numbers.step_size * scales[i];
            parameters[i] = parameters[i] * shrink - m / denominator * size;
        }
    }
}
