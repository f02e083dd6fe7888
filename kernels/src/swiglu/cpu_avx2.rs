//! SwiGLU on CPUs with AVX2, eight values at a time.

use std::arch::x86_64::{_mm256_fmadd_ps, _mm256_mul_ps, _mm256_set1_ps, _mm256_sub_ps};
use std::mem::MaybeUninit;

use crate::cpu::exp_avx2::sigmoid;
use crate::cpu::lanes_avx2::{LANES, load, store};
use crate::cpu::number::Number;

/// Converts rows `[gate, up]` of `f` elements each to rows of `f`.
///
/// # Safety
///
/// AVX2; `f` is a multiple of 8, and `y` is half as long as `gate_up`, in rows of `f`.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn forward<T: Number>(gate_up: &[T], f: usize, y: &mut [MaybeUninit<T>]) {
    for (row, y) in gate_up.chunks_exact(2 * f).zip(y.chunks_exact_mut(f)) {
        let (gate, up) = row.split_at(f);
        let (gate, up, y) = (gate.as_ptr(), up.as_ptr(), y.as_mut_ptr().cast::<T>());
        for first in (0..f).step_by(LANES) {
            // SAFETY: guaranteed by the caller; the parts are within the row.
            unsafe {
                let gate = load(gate.add(first));
                let silu = _mm256_mul_ps(gate, sigmoid(gate));
                store(y.add(first), _mm256_mul_ps(silu, load(up.add(first))));
            }
        }
    }
}

/// Replaces rows `[gate, up]` by their gradients.
///
/// # Safety
///
/// AVX2; `f` is a multiple of 8, and `dy` is half as long as `gate_up`, in rows of `f`.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn backward<T: Number>(gate_up: &mut [T], dy: &[T], f: usize) {
    for (row, dy) in gate_up.chunks_exact_mut(2 * f).zip(dy.chunks_exact(f)) {
        let (gate, up) = row.split_at_mut(f);
        let (gate, up, dy) = (gate.as_mut_ptr(), up.as_mut_ptr(), dy.as_ptr());
        for first in (0..f).step_by(LANES) {
            // SAFETY: guaranteed by the caller; the parts are within the row.
            unsafe {
                let (gate, up) = (gate.add(first), up.add(first));
                let (g, u, dy) = (load(gate), load(up), load(dy.add(first)));
                let sigmoid = sigmoid(g);
                let silu = _mm256_mul_ps(g, sigmoid);
                // Not `silu - silu σ`, which loses all precision for large gates.
                let complement = _mm256_sub_ps(_mm256_set1_ps(1.0), sigmoid);
                let slope = _mm256_fmadd_ps(silu, complement, sigmoid);
                store(gate, _mm256_mul_ps(_mm256_mul_ps(dy, u), slope));
                store(up, _mm256_mul_ps(dy, silu));
            }
        }
    }
}
