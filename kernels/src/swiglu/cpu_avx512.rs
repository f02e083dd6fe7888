//! SwiGLU on CPUs with AVX-512, sixteen numbers at a time.

use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_mul_ps, _mm512_set1_ps, _mm512_sub_ps};
use std::mem::MaybeUninit;

use crate::cpu::lanes_avx512::{lanes, load, sigmoid, store};
use crate::cpu::number::Number;

/// Rows `gate`, `up` of `f` each to rows of `f`.
///
/// # Safety
///
/// The instruction set; `y` is half as long as `gate_up`, in rows of `f`.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
pub(super) unsafe fn forward<T: Number>(gate_up: &[T], f: usize, y: &mut [MaybeUninit<T>]) {
    for (row, y) in gate_up.chunks_exact(2 * f).zip(y.chunks_exact_mut(f)) {
        let (gate, up) = row.split_at(f);
        for first in (0..f).step_by(16) {
            let mask = lanes(f - first);
            // SAFETY: lanes under the mask lie within the row.
            unsafe {
                let gate = load(gate.as_ptr().add(first), mask);
                let up = load(up.as_ptr().add(first), mask);
                let silu = _mm512_mul_ps(gate, sigmoid(gate));
                let to = y.as_mut_ptr().add(first).cast::<T>();
                store(to, mask, _mm512_mul_ps(silu, up));
            }
        }
    }
}

/// Puts gradients in the place of rows `gate`, `up`.
///
/// # Safety
///
/// The instruction set; `dy` is half as long as `gate_up`, in rows of `f`.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
pub(super) unsafe fn backward<T: Number>(gate_up: &mut [T], dy: &[T], f: usize) {
    for (row, dy) in gate_up.chunks_exact_mut(2 * f).zip(dy.chunks_exact(f)) {
        let (gates, ups) = row.split_at_mut(f);
        for first in (0..f).step_by(16) {
            let mask = lanes(f - first);
            // SAFETY: lanes under the mask lie within the row.
            unsafe {
                let (gate, up) = (gates.as_mut_ptr().add(first), ups.as_mut_ptr().add(first));
                let dy = load(dy.as_ptr().add(first), mask);
                let (g, u) = (load(gate, mask), load(up, mask));
                let sigmoid = sigmoid(g);
                let silu = _mm512_mul_ps(g, sigmoid);
                // Not silu - silu σ, which loses all digits of large gates.
                let rest = _mm512_sub_ps(_mm512_set1_ps(1.0), sigmoid);
                let slope = _mm512_fmadd_ps(silu, rest, sigmoid);
                store(gate, mask, _mm512_mul_ps(_mm512_mul_ps(dy, u), slope));
                store(up, mask, _mm512_mul_ps(dy, silu));
            }
        }
    }
}
