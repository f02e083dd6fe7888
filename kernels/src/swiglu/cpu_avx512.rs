//! SwiGLU on CPUs with AVX-512, 128 values at a time.
//!
//! The logistic function is a long dependency chain: interleaving several vectors keeps the
//! processor busy. The out-of-order window then no longer reaches the next loads, so these are
//! prefetched.

use std::arch::x86_64::{
    _mm512_fmadd_ps, _mm512_mul_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_sub_ps,
};
use std::mem::MaybeUninit;

use crate::cpu::exp_avx512::sigmoids;
use crate::cpu::isa::for_avx512;
use crate::cpu::lanes_avx512::{TWO, load_split, store_split};
use crate::cpu::number::Number;
use crate::cpu::tile_avx512::prefetch_l1;

/// Interleaved vectors; two of them hold [`TWO`] elements.
const ABREAST: usize = 8;

/// Elements of all interleaved vectors.
const STEP: usize = ABREAST / 2 * TWO;

/// Prefetch distance in elements. Without prefetching, uncached f32 takes up to twice as long in
/// the forward pass, and up to 1.4 times in the backward pass.
const AHEAD: usize = 1024;

/// Prefetches the elements of a later step.
#[target_feature(enable = "avx512f")]
#[inline]
fn prefetch_step<T>(from: *const T) {
    const F32_LINES: usize = STEP * size_of::<f32>() / 64;
    let first = from.wrapping_add(AHEAD).cast();
    if size_of::<T>() == size_of::<f32>() {
        prefetch_l1::<F32_LINES>(first)
    } else {
        prefetch_l1::<{ F32_LINES / 2 }>(first)
    }
}

for_avx512! {
    /// Converts rows `[gate, up]` of `f` elements each to rows of `f`.
    ///
    /// # Safety
    ///
    /// AVX-512; `y` is half as long as `gate_up`, in rows of `f`.
    pub(super) unsafe fn forward[T, PAIRS](gate_up: &[T], f: usize, y: &mut [MaybeUninit<T>]) {
        for (row, y) in gate_up.chunks_exact(2 * f).zip(y.chunks_exact_mut(f)) {
            let (gate, up) = row.split_at(f);
            let (gate, up, y) = (gate.as_ptr(), up.as_ptr(), y.as_mut_ptr().cast::<T>());
            let mut first = 0;
            // SAFETY: guaranteed by the caller; the parts are within the row.
            unsafe {
                while f - first >= STEP {
                    let (gate, up) = (gate.add(first), up.add(first));
                    prefetch_step(gate);
                    prefetch_step(up);
                    gate_vectors::<T, PAIRS, ABREAST>(gate, up, STEP, y.add(first));
                    first += STEP;
                }
                while first < f {
                    let (gate, up) = (gate.add(first), up.add(first));
                    gate_vectors::<T, PAIRS, 2>(gate, up, f - first, y.add(first));
                    first += TWO;
                }
            }
        }
    }
}

/// Loads the first `n` elements of `N` vectors.
///
/// # Safety
///
/// AVX-512, and its bf16 instructions if `PAIRS`; memory for `n` elements is valid, and all of them
/// are needed unless there are two vectors.
#[inline(always)]
unsafe fn gate_vectors<T: Number, const PAIRS: bool, const N: usize>(
    gate: *const T,
    up: *const T,
    n: usize,
    y: *mut T,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut gates = [_mm512_setzero_ps(); N];
        for (i, gates) in gates.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            *gates = load_split(gate.add(i * TWO), n - i * TWO);
        }
        let sigmoids = sigmoids::<T, N>(gates);
        for i in 0..N {
            gates[i] = _mm512_mul_ps(gates[i], sigmoids[i]);
        }
        for (i, [a, b]) in gates.as_chunks::<2>().0.iter().enumerate() {
            let up = load_split(up.add(i * TWO), n - i * TWO);
            let products = [_mm512_mul_ps(*a, up[0]), _mm512_mul_ps(*b, up[1])];
            store_split::<T, PAIRS>(y.add(i * TWO), n - i * TWO, products);
        }
    }
}

for_avx512! {
    /// Replaces rows `[gate, up]` by their gradients.
    ///
    /// # Safety
    ///
    /// AVX-512; `dy` is half as long as `gate_up`, in rows of `f`.
    pub(super) unsafe fn backward[T, PAIRS](gate_up: &mut [T], dy: &[T], f: usize) {
        for (row, dy) in gate_up.chunks_exact_mut(2 * f).zip(dy.chunks_exact(f)) {
            let (gate, up) = row.split_at_mut(f);
            let (gate, up, dy) = (gate.as_mut_ptr(), up.as_mut_ptr(), dy.as_ptr());
            let mut first = 0;
            // SAFETY: guaranteed by the caller; the parts are within the row.
            unsafe {
                while f - first >= STEP {
                    let (gate, up, dy) = (gate.add(first), up.add(first), dy.add(first));
                    prefetch_step(gate);
                    prefetch_step(up);
                    prefetch_step(dy);
                    to_gradients::<T, PAIRS, ABREAST>(gate, up, dy, STEP);
                    first += STEP;
                }
                while first < f {
                    let (gate, up) = (gate.add(first), up.add(first));
                    to_gradients::<T, PAIRS, 2>(gate, up, dy.add(first), f - first);
                    first += TWO;
                }
            }
        }
    }
}

/// The first `n` elements of `N` vectors.
///
/// # Safety
///
/// Same as for [`gate_vectors`].
#[inline(always)]
unsafe fn to_gradients<T: Number, const PAIRS: bool, const N: usize>(
    gate: *mut T,
    up: *mut T,
    dy: *const T,
    n: usize,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut gates = [_mm512_setzero_ps(); N];
        for (i, gates) in gates.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            *gates = load_split(gate.add(i * TWO), n - i * TWO);
        }
        let sigmoids = sigmoids::<T, N>(gates);
        for pair in 0..N / 2 {
            let (at, n) = (pair * TWO, n - pair * TWO);
            let dy = load_split(dy.add(at), n);
            let u = load_split(up.add(at), n);
            let mut results = [[_mm512_setzero_ps(); 2]; 2];
            for i in 0..2 {
                let sigmoid = sigmoids[2 * pair + i];
                let silu = _mm512_mul_ps(gates[2 * pair + i], sigmoid);
                // Not `silu - silu σ`, which loses all precision for large gates.
                let complement = _mm512_sub_ps(_mm512_set1_ps(1.0), sigmoid);
                let slope = _mm512_fmadd_ps(silu, complement, sigmoid);
                results[0][i] = _mm512_mul_ps(_mm512_mul_ps(dy[i], u[i]), slope);
                results[1][i] = _mm512_mul_ps(dy[i], silu);
            }
            store_split::<T, PAIRS>(gate.add(at), n, results[0]);
            store_split::<T, PAIRS>(up.add(at), n, results[1]);
        }
    }
}
