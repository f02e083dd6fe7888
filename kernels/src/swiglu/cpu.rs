//! SwiGLU on slices; the backward pass recomputes the sigmoid instead of storing it.

use std::mem::MaybeUninit;

use burn::backend::flex::FlexTensor;

#[cfg(target_arch = "x86_64")]
use super::{cpu_avx2, cpu_avx512};
use crate::cpu::exp::sigmoid;
use crate::cpu::gated::{gated_gradient, gated_rows};
use crate::cpu::isa::{Isa, for_each_isa};
use crate::cpu::number::Number;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::{change_rows, write_rows};

/// `silu(gate) * up` for rows `[gate, up]`: `[n, 2 f]` to `[n, f]`.
pub(super) fn swiglu<T: Number>(gate_up: &[T], [n, f]: [usize; 2]) -> Buffer<T> {
    // SAFETY: `forward` writes every element of its target.
    unsafe {
        write_rows([n, f], |rows, y| {
            let gate_up = &gate_up[rows.start * 2 * f..rows.end * 2 * f];
            match Isa::detect() {
                // SAFETY: the CPU feature was detected; rows are whole.
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

/// The gradient of `gate_up`, `[n, 2 f]`, in its memory if it is not shared; `dy` is `[n, f]`.
pub(super) fn to_gradient<T: Number>(gate_up: FlexTensor, dy: &[T], f: usize) -> FlexTensor {
    change_rows::<T>(gate_up, 2 * f, |rows, gate_up| {
        let dy = &dy[rows.start * f..rows.end * f];
        match Isa::detect() {
            // SAFETY: the CPU feature was detected; rows are whole.
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
        gated_rows(gate_up, f, y, |gate| gate * sigmoid(gate));
    }
}

for_each_isa! {
    fn backward[T: Number](gate_up: &mut [T], dy: &[T], f: usize) {
        gated_gradient(gate_up, dy, f, |gate| {
            let sigmoid = sigmoid(gate);
            let silu = gate * sigmoid;
            [silu, sigmoid + silu * (1.0 - sigmoid)]
        });
    }
}
