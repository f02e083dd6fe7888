//! GeGLU on slices; the backward pass computes the tangent again instead of keeping it.

use std::mem::MaybeUninit;

use burn::backend::flex::FlexTensor;

use crate::cpu::exp::exp;
use crate::cpu::isa::for_each_isa;
use crate::cpu::number::Number;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::{change_rows, write_rows};

/// `√(2 / π)`.
pub(super) const INNER: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;

/// The share of the cube in the argument of the tangent.
pub(super) const CUBIC: f64 = 0.044_715;

/// `gelu(gate) * up` of rows `gate`, `up`: `[n, 2 f]` to `[n, f]`.
pub(super) fn geglu<T: Number>(gate_up: &[T], [n, f]: [usize; 2]) -> Buffer<T> {
    // SAFETY: `forward` writes every element of its target.
    unsafe {
        write_rows([n, f], |rows, y| {
            forward(&gate_up[rows.start * 2 * f..rows.end * 2 * f], f, y);
        })
    }
}

/// The gradient of `gate_up`, `[n, 2 f]`, in its place if nobody shares it; `dy` is `[n, f]`.
pub(super) fn to_gradient<T: Number>(gate_up: FlexTensor, dy: &[T], f: usize) -> FlexTensor {
    change_rows::<T>(gate_up, 2 * f, |rows, gate_up| {
        backward(gate_up, &dy[rows.start * f..rows.end * f], f);
    })
}

/// `(1 + tanh(t)) / 2` at `t = √(2 / π) (x + a x³)`, which is the logistic function of `2 t`.
#[inline(always)]
fn share(x: f32) -> f32 {
    let twice = 2.0 * INNER as f32 * x * (1.0 + CUBIC as f32 * x * x);
    1.0 / (1.0 + exp(-twice))
}

for_each_isa! {
    fn forward[T: Number](gate_up: &[T], f: usize, y: &mut [MaybeUninit<T>]) {
        for (row, y) in gate_up.chunks_exact(2 * f).zip(y.chunks_exact_mut(f)) {
            let (gate, up) = row.split_at(f);
            for ((y, &gate), &up) in y.iter_mut().zip(gate).zip(up) {
                let gate = gate.widen();
                y.write(T::narrow(gate * share(gate) * up.widen()));
            }
        }
    }
}

for_each_isa! {
    fn backward[T: Number](gate_up: &mut [T], dy: &[T], f: usize) {
        for (row, dy) in gate_up.chunks_exact_mut(2 * f).zip(dy.chunks_exact(f)) {
            let (gates, ups) = row.split_at_mut(f);
            for ((gate, up), dy) in gates.iter_mut().zip(ups).zip(dy) {
                let (g, u, dy) = (gate.widen(), up.widen(), dy.widen());
                let share = share(g);
                let gelu = g * share;
                let inner = 2.0 * INNER as f32 * (1.0 + 3.0 * CUBIC as f32 * g * g);
                // Where nothing is left of the share, the slope of its argument may be infinite.
                let rest = share * (1.0 - share);
                let bend = if rest == 0.0 { 0.0 } else { g * rest * inner };
                *gate = T::narrow(dy * u * (share + bend));
                *up = T::narrow(dy * gelu);
            }
        }
    }
}
