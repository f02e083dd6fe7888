//! SwiGLU on CPUs with AVX-512, thirty-two numbers at a time.

use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_mul_ps, _mm512_set1_ps, _mm512_sub_ps};
use std::mem::MaybeUninit;

use crate::cpu::isa::for_avx512;
use crate::cpu::lanes_avx512::{TWO, load_two, sigmoid, store_two};

for_avx512! {
    /// Rows `gate`, `up` of `f` each to rows of `f`.
    ///
    /// # Safety
    ///
    /// AVX-512; `y` is half as long as `gate_up`, in rows of `f`.
    pub(super) unsafe fn forward[T, PAIRS](gate_up: &[T], f: usize, y: &mut [MaybeUninit<T>]) {
        for (row, y) in gate_up.chunks_exact(2 * f).zip(y.chunks_exact_mut(f)) {
            let (gate, up) = row.split_at(f);
            for first in (0..f).step_by(TWO) {
                // SAFETY: as the caller promises; `n` numbers are left in each half and in `y`.
                unsafe {
                    let n = f - first;
                    let gate = load_two(gate.as_ptr().add(first), n);
                    let up = load_two(up.as_ptr().add(first), n);
                    let found = |i: usize| {
                        let silu = _mm512_mul_ps(gate[i], sigmoid::<T>(gate[i]));
                        _mm512_mul_ps(silu, up[i])
                    };
let found = [found(0), found(1)];
                    store_two::<T, PAIRS>(y.as_mut_ptr().add(first).cast(), n, found);
                }
            }
        }
    }
}

for_avx512! {
    /// Puts gradients in the place of rows `gate`, `up`.
    ///
    /// # Safety
    ///
    /// AVX-512; `dy` is half as long as `gate_up`, in rows of `f`.
    pub(super) unsafe fn backward[T, PAIRS](gate_up: &mut [T], dy: &[T], f: usize) {
        for (row, dy) in gate_up.chunks_exact_mut(2 * f).zip(dy.chunks_exact(f)) {
            let (gates, ups) = row.split_at_mut(f);
            for first in (0..f).step_by(TWO) {
                // SAFETY: as the caller promises; `n` numbers are left in each row.
                unsafe {
                    let n = f - first;
                    let (gate, up) = (gates.as_mut_ptr().add(first), ups.as_mut_ptr().add(first));
                    let dy = load_two(dy.as_ptr().add(first), n);
                    let (g, u) = (load_two(gate, n), load_two(up, n));
                    let sigmoid = [sigmoid::<T>(g[0]), sigmoid::<T>(g[1])];
                    let silu = |i: usize| _mm512_mul_ps(g[i], sigmoid[i]);
let silu = [silu(0), silu(1)];
                    let d_gate = |i: usize| {
                        // Not silu - silu σ, which loses all digits of large gates.
                        let rest = _mm512_sub_ps(_mm512_set1_ps(1.0), sigmoid[i]);
                        let slope = _mm512_fmadd_ps(silu[i], rest, sigmoid[i]);
                        _mm512_mul_ps(_mm512_mul_ps(dy[i], u[i]), slope)
                    };
let d_gate = [d_gate(0), d_gate(1)];
                    let d_up = |i: usize| _mm512_mul_ps(dy[i], silu[i]);
let d_up = [d_up(0), d_up(1)];
                    store_two::<T, PAIRS>(gate, n, d_gate);
                    store_two::<T, PAIRS>(up, n, d_up);
                }
            }
        }
    }
}
