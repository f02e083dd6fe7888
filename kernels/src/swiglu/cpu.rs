//! SwiGLU on slices; the backward pass computes the sigmoid again instead of keeping it.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use crate::cpu::buffer::filled;
use crate::cpu::exp::exp;
use crate::cpu::isa::for_each_isa;
use crate::cpu::rows::{map_rows, task_floats};

/// `silu(gate) * up`.
pub(crate) fn swiglu(gate: &[f32], up: &[f32]) -> Vec<f32> {
    // SAFETY: `forward` writes every element of its target.
    unsafe {
        map_rows(gate, 1, |start, gate, y| {
            forward(gate, &up[start..start + gate.len()], y)
        })
    }
}

/// Gradients of `gate` and `up`.
pub(crate) fn swiglu_gradients(gate: &[f32], up: &[f32], dy: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let step = task_floats(1);
    let mut d_up = Vec::new();
    // SAFETY: the runs cover both targets, and `backward` writes every element of them.
    let d_gate = unsafe {
        filled(gate.len(), |d_gate| {
            d_up = filled(gate.len(), |d_up| {
                let targets = d_gate.par_chunks_mut(step).zip(d_up.par_chunks_mut(step));
                let inputs = gate
                    .par_chunks(step)
                    .zip(up.par_chunks(step))
                    .zip(dy.par_chunks(step));
                targets
                    .zip(inputs)
                    .for_each(|((d_gate, d_up), ((gate, up), dy))| {
                        backward(gate, up, dy, d_gate, d_up);
                    });
            });
        })
    };
    (d_gate, d_up)
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

for_each_isa! {
    fn forward(gate: &[f32], up: &[f32], y: &mut [MaybeUninit<f32>]) {
        for ((y, &gate), &up) in y.iter_mut().zip(gate).zip(up) {
            y.write(gate * sigmoid(gate) * up);
        }
    }
}

for_each_isa! {
    fn backward(
        gate: &[f32],
        up: &[f32],
        dy: &[f32],
        d_gate: &mut [MaybeUninit<f32>],
        d_up: &mut [MaybeUninit<f32>],
    ) {
        let inputs = gate.iter().zip(up).zip(dy);
        for ((d_gate, d_up), ((&gate, &up), &dy)) in d_gate.iter_mut().zip(d_up).zip(inputs) {
            let sigmoid = sigmoid(gate);
            let silu = gate * sigmoid;
            d_gate.write(dy * up * (sigmoid + silu * (1.0 - sigmoid)));
            d_up.write(dy * silu);
        }
    }
}
