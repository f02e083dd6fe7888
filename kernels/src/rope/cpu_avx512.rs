//! Rotation of heads on CPUs with AVX-512, thirty-two pairs at a time.

use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_fmsub_ps, _mm512_mul_ps, _mm512_set1_ps};

use super::cpu::Tables;
use crate::cpu::isa::for_avx512;
use crate::cpu::lanes_avx512::{TWO, load_beside, load_split, store_split};

for_avx512! {
    /// Rows of `shape[0]` numbers, of which the first `shape[1]` are turned, whole heads.
    ///
    /// # Safety
    ///
    /// AVX-512; the tables have a line for each row.
    pub(super) unsafe fn rotate_rows[T, PAIRS](
        x: &mut [T],
        shape: [usize; 2],
        tables: Tables<'_>,
        sign: f32,
    ) {
        let ([width, turned], half) = (shape, tables.half);
        let lines = tables.cos.chunks_exact(half).zip(tables.sin.chunks_exact(half));
        for (x, (cos, sin)) in x.chunks_exact_mut(width).zip(lines) {
            for first in (0..half).step_by(TWO) {
                let n = half - first;
                // SAFETY: as the caller promises; `n` numbers are left in each half of a head and
                // in each line of the tables.
                unsafe {
                    let cos = load_beside::<T>(cos.as_ptr().add(first), n);
                    let sin = load_beside::<T>(sin.as_ptr().add(first), n);
                    let sign = _mm512_set1_ps(sign);
let sin = [_mm512_mul_ps(sin[0], sign), _mm512_mul_ps(sin[1], sign)];
                    for head in x[..turned].chunks_exact_mut(2 * half) {
                        let a = head.as_mut_ptr().add(first);
                        let b = a.add(half);
                        let (x, y) = (load_split(a, n), load_split(b, n));
                        let turned = |i: usize| {
                            _mm512_fmsub_ps(x[i], cos[i], _mm512_mul_ps(y[i], sin[i]))
                        };
let turned = [turned(0), turned(1)];
                        store_split::<T, PAIRS>(a, n, turned);
                        let turned = |i: usize| {
                            _mm512_fmadd_ps(y[i], cos[i], _mm512_mul_ps(x[i], sin[i]))
                        };
let turned = [turned(0), turned(1)];
                        store_split::<T, PAIRS>(b, n, turned);
                    }
                }
            }
        }
    }
}
