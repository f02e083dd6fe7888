//! SwiGLU on CPUs with AVX-512, a hundred and twenty-eight numbers at a time.
//!
//! The logistic function is a long chain: side by side, the chains of several vectors keep the
//! processor busy, so busy that it does not come to ask memory for what is further on: it is told to.

use std::arch::x86_64::{
    _mm512_fmadd_ps, _mm512_mul_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_sub_ps,
};
use std::mem::MaybeUninit;

use crate::cpu::exp_avx512::sigmoids;
use crate::cpu::isa::for_avx512;
use crate::cpu::lanes_avx512::{TWO, load_split, store_split};
use crate::cpu::number::Number;
use crate::cpu::tile_avx512::ask_to_read;

/// Vectors side by side, two of [`TWO`] numbers each.
const ABREAST: usize = 8;

/// Numbers in them.
const STEP: usize = ABREAST / 2 * TWO;

/// Numbers from those that are computed to those that are asked for. Without asking, f32 that no cache
/// holds takes up to twice as long forward, and up to 1.4 times as long back.
const AHEAD: usize = 1024;

/// Has the numbers of a later step brought, as many as a step has.
#[target_feature(enable = "avx512f")]
#[inline]
fn ask_ahead<T>(from: *const T) {
    const F32_LINES: usize = STEP * size_of::<f32>() / 64;
    let first = from.wrapping_add(AHEAD).cast();
    if size_of::<T>() == size_of::<f32>() {
        ask_to_read::<F32_LINES>(first)
    } else {
        ask_to_read::<{ F32_LINES / 2 }>(first)
    }
}

for_avx512! {
    /// Rows `gate`, `up` of `f` each to rows of `f`.
    ///
    /// # Safety
    ///
    /// AVX-512; `y` is half as long as `gate_up`, in rows of `f`.
    pub(super) unsafe fn forward[T, PAIRS](gate_up: &[T], f: usize, y: &mut [MaybeUninit<T>]) {
        for (row, y) in gate_up.chunks_exact(2 * f).zip(y.chunks_exact_mut(f)) {
            let (gate, up) = row.split_at(f);
            let (gate, up, y) = (gate.as_ptr(), up.as_ptr(), y.as_mut_ptr().cast::<T>());
            let mut first = 0;
            // SAFETY: as the caller promises; the parts lie within the row.
            unsafe {
                while f - first >= STEP {
                    let (gate, up) = (gate.add(first), up.add(first));
                    ask_ahead(gate);
                    ask_ahead(up);
                    gated::<T, PAIRS, ABREAST>(gate, up, STEP, y.add(first));
                    first += STEP;
                }
                while first < f {
                    let (gate, up) = (gate.add(first), up.add(first));
                    gated::<T, PAIRS, 2>(gate, up, f - first, y.add(first));
                    first += TWO;
                }
            }
        }
    }
}

/// The first `n` numbers of `N` vectors.
///
/// # Safety
///
/// AVX-512, with `PAIRS` its instructions for bf16; memory for `n` numbers, and all of them needed
/// unless there are two vectors.
#[inline(always)]
unsafe fn gated<T: Number, const PAIRS: bool, const N: usize>(
    gate: *const T,
    up: *const T,
    n: usize,
    y: *mut T,
) {
    // SAFETY: as the caller promises.
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
            let found = [_mm512_mul_ps(*a, up[0]), _mm512_mul_ps(*b, up[1])];
            store_split::<T, PAIRS>(y.add(i * TWO), n - i * TWO, found);
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
            let (gate, up) = row.split_at_mut(f);
            let (gate, up, dy) = (gate.as_mut_ptr(), up.as_mut_ptr(), dy.as_ptr());
            let mut first = 0;
            // SAFETY: as the caller promises; the parts lie within the row.
            unsafe {
                while f - first >= STEP {
                    let (gate, up, dy) = (gate.add(first), up.add(first), dy.add(first));
                    ask_ahead(gate);
                    ask_ahead(up);
                    ask_ahead(dy);
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

/// The first `n` numbers of `N` vectors.
///
/// # Safety
///
/// As for [`gated`].
#[inline(always)]
unsafe fn to_gradients<T: Number, const PAIRS: bool, const N: usize>(
    gate: *mut T,
    up: *mut T,
    dy: *const T,
    n: usize,
) {
    // SAFETY: as the caller promises.
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
            let mut found = [[_mm512_setzero_ps(); 2]; 2];
            for i in 0..2 {
                let sigmoid = sigmoids[2 * pair + i];
                let silu = _mm512_mul_ps(gates[2 * pair + i], sigmoid);
                // Not silu - silu σ, which loses all digits of large gates.
                let rest = _mm512_sub_ps(_mm512_set1_ps(1.0), sigmoid);
                let slope = _mm512_fmadd_ps(silu, rest, sigmoid);
                found[0][i] = _mm512_mul_ps(_mm512_mul_ps(dy[i], u[i]), slope);
                found[1][i] = _mm512_mul_ps(dy[i], silu);
            }
            store_split::<T, PAIRS>(gate.add(at), n, found[0]);
            store_split::<T, PAIRS>(up.add(at), n, found[1]);
        }
    }
}
