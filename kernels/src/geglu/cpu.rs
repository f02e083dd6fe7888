//! GeGLU on slices; the backward pass recomputes tanh instead of storing it.

use std::mem::MaybeUninit;

use burn::backend::flex::FlexTensor;

use crate::cpu::exp::exp;
use crate::cpu::gated::{gated_gradient, gated_rows};
use crate::cpu::isa::for_each_isa;
use crate::cpu::number::Number;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::{change_rows, write_rows};

/// `√(2 / π)`.
pub(super) const INNER: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;

/// Coefficient of the cubic term in the argument of tanh.
pub(super) const CUBIC: f64 = 0.044_715;

/// `gelu(gate) * up` for rows `[gate, up]`: `[n, 2 f]` to `[n, f]`.
pub(super) fn geglu<T: Number>(gate_up: &[T], [n, f]: [usize; 2]) -> Buffer<T> {
    // SAFETY: `forward` writes every element of its target.
    unsafe {
        write_rows([n, f], |rows, y| {
            forward(&gate_up[rows.start * 2 * f..rows.end * 2 * f], f, y);
        })
    }
}

/// The gradient of `gate_up`, `[n, 2 f]`, in its memory if it is not shared; `dy` is `[n, f]`.
pub(super) fn to_gradient<T: Number>(gate_up: FlexTensor, dy: &[T], f: usize) -> FlexTensor {
    change_rows::<T>(gate_up, 2 * f, |rows, gate_up| {
        backward(gate_up, &dy[rows.start * f..rows.end * f], f);
    })
}

/// `(1 + tanh(t)) / 2` at `t = √(2 / π) (x + a x³)`, which is the logistic function of `2 t`.
#[inline(always)]
fn logistic(x: f32) -> f32 {
    let twice = 2.0 * INNER as f32 * x * (1.0 + CUBIC as f32 * x * x);
    1.0 / (1.0 + exp(-twice))
}

for_each_isa! {
    fn forward[T: Number](gate_up: &[T], f: usize, y: &mut [MaybeUninit<T>]) {
        gated_rows(gate_up, f, y, |gate| gate * logistic(gate));
    }
}

for_each_isa! {
    fn backward[T: Number](gate_up: &mut [T], dy: &[T], f: usize) {
        gated_gradient(gate_up, dy, f, |gate| {
            let logistic = logistic(gate);
            let inner = 2.0 * INNER as f32 * (1.0 + 3.0 * CUBIC as f32 * gate * gate);
            // If the gate factor is 0, the derivative of its argument may be infinite.
            let slope = logistic * (1.0 - logistic);
            let bend = if slope == 0.0 { 0.0 } else { gate * slope * inner };
            [gate * logistic, logistic + bend]
        });
    }
}
