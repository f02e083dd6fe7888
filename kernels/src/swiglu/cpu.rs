//! SwiGLU on slices; the backward pass computes the sigmoid again instead of keeping it.

use std::mem::MaybeUninit;

use burn::backend::flex::FlexTensor;

#[cfg(target_arch = "x86_64")]
use super::{cpu_avx2, cpu_avx512};
use crate::cpu::exp::sigmoid;
use crate::cpu::isa::{Isa, for_each_isa};
use crate::cpu::number::Number;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::{change_rows, write_rows};

/// `silu(gate) * up` of rows `gate`, `up`: `[n, 2 f]` to `[n, f]`.
pub(super) fn swiglu<T: Number>(gate_up: &[T], [n, f]: [usize; 2]) -> Buffer<T> {
    // SAFETY: `forward` writes every element of its target.
    unsafe {
        write_rows([n, f], |rows, y| {
            let gate_up = &gate_up[rows.start * 2 * f..rows.end * 2 * f];
            match Isa::detect() {
                // SAFETY: detected; rows are whole.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => cpu_avx512::forward(gate_up, f, y),
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 if f.is_multiple_of(8) => cpu_avx2::forward(gate_up, f, y),
                _ => forward(gate_up, f, y),
            }
        })
    }
}

/// The gradient of `gate_up`, `[n, 2 f]`, in its place if nobody shares it; `dy` is `[n, f]`.
pub(super) fn to_gradient<T: Number>(gate_up: FlexTensor, dy: &[T], f: usize) -> FlexTensor {
    change_rows::<T>(gate_up, 2 * f, |rows, gate_up| {
        let dy = &dy[rows.start * f..rows.end * f];
        match Isa::detect() {
            // SAFETY: detected; rows are whole.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { cpu_avx512::backward(gate_up, dy, f) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 if f.is_multiple_of(8) => unsafe { cpu_avx2::backward(gate_up, dy, f) },
            _ => backward(gate_up, dy, f),
        }
    })
}

for_each_isa! {
    fn forward[T: Number](gate_up: &[T], f: usize, y: &mut [MaybeUninit<T>]) {
        for (row, y) in gate_up.chunks_exact(2 * f).zip(y.chunks_exact_mut(f)) {
            let (gate, up) = row.split_at(f);
            for ((y, &gate), &up) in y.iter_mut().zip(gate).zip(up) {
                let gate = gate.widen();
                y.write(T::narrow(gate * sigmoid(gate) * up.widen()));
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
                let sigmoid = sigmoid(g);
                let silu = g * sigmoid;
                *gate = T::narrow(dy * u * (sigmoid + silu * (1.0 - sigmoid)));
                *up = T::narrow(dy * silu);
            }
        }
    }
}
