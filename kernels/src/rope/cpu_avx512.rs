//! Rotation of heads on CPUs with AVX-512, 32 pairs at a time.

use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_fmsub_ps, _mm512_mul_ps, _mm512_set1_ps};

use super::cpu::Tables;
use crate::cpu::isa::for_avx512;
use crate::cpu::lanes_avx512::{TWO, load_beside, load_split, store_split};

for_avx512! {
    /// Rotates the first `shape[1]` elements (whole heads) of rows of `shape[0]` elements, and
    /// copies the rest. `to` may be `from`.
    ///
    /// # Safety
    ///
    /// AVX-512; `from` and `to` have a row for each line of the tables.
    pub(super) unsafe fn rotate_rows[T, PAIRS](
        from: *const T,
        to: *mut T,
        shape: [usize; 2],
        tables: Tables<'_>,
        sign: f32,
    ) {
        let ([width, rotated], half) = (shape, tables.half);
        let lines = tables.cos.chunks_exact(half).zip(tables.sin.chunks_exact(half));
        // SAFETY: the caller guarantees AVX-512.
        let sign = unsafe { _mm512_set1_ps(sign) };
        for (row, (cos, sin)) in lines.enumerate() {
            // SAFETY: guaranteed by the caller; `n` elements are left in each half of a head and in
            // each table line.
            unsafe {
                let (from, to) = (from.add(row * width), to.add(row * width));
                for first in (0..half).step_by(TWO) {
                    let n = half - first;
                    let cos = load_beside::<T>(cos.as_ptr().add(first), n);
                    let sin = load_beside::<T>(sin.as_ptr().add(first), n);
                    let sin = [_mm512_mul_ps(sin[0], sign), _mm512_mul_ps(sin[1], sign)];
                    for head in (first..rotated).step_by(tables.head) {
                        let (a, b) = (from.add(head), from.add(head + half));
                        let (x, y) = (load_split(a, n), load_split(b, n));
                        let first_half = [
                            _mm512_fmsub_ps(x[0], cos[0], _mm512_mul_ps(y[0], sin[0])),
                            _mm512_fmsub_ps(x[1], cos[1], _mm512_mul_ps(y[1], sin[1])),
                        ];
                        store_split::<T, PAIRS>(to.add(head), n, first_half);
                        let second_half = [
                            _mm512_fmadd_ps(y[0], cos[0], _mm512_mul_ps(x[0], sin[0])),
                            _mm512_fmadd_ps(y[1], cos[1], _mm512_mul_ps(x[1], sin[1])),
                        ];
                        store_split::<T, PAIRS>(to.add(head + half), n, second_half);
                    }
                }
                if !std::ptr::eq(from, to) {
                    to.add(rotated).copy_from_nonoverlapping(from.add(rotated), width - rotated);
                }
            }
        }
    }
}
