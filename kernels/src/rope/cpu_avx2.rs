//! Rotation of heads on CPUs with AVX2, eight pairs at a time.

use std::arch::x86_64::{_mm256_fmadd_ps, _mm256_fmsub_ps, _mm256_mul_ps, _mm256_set1_ps};

use super::cpu::Tables;
use crate::cpu::lanes_avx2::{LANES, load, store};
use crate::cpu::number::Number;

/// Rotates the first `shape[1]` elements (whole heads) of rows of `shape[0]` elements, and copies
/// the rest. `to` may be `from`.
///
/// # Safety
///
/// AVX2; `from` and `to` have a row for each line of the tables, whose length is a multiple of 8.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn rotate_rows<T: Number>(
    from: *const T,
    to: *mut T,
    [width, rotated]: [usize; 2],
    tables: Tables<'_>,
    sign: f32,
) {
    let half = tables.half;
    let lines = tables
        .cos
        .chunks_exact(half)
        .zip(tables.sin.chunks_exact(half));
    let sign = _mm256_set1_ps(sign);
    for (row, (cos, sin)) in lines.enumerate() {
        // SAFETY: guaranteed by the caller: eight elements of each half of a head and of each table
        // line.
        unsafe {
            let (from, to) = (from.add(row * width), to.add(row * width));
            for first in (0..half).step_by(LANES) {
                let cos = load(cos.as_ptr().add(first));
                let sin = _mm256_mul_ps(load(sin.as_ptr().add(first)), sign);
                for head in (first..rotated).step_by(tables.head) {
                    let (x1, x2) = (load(from.add(head)), load(from.add(head + half)));
                    let first = _mm256_fmsub_ps(x1, cos, _mm256_mul_ps(x2, sin));
                    let second = _mm256_fmadd_ps(x2, cos, _mm256_mul_ps(x1, sin));
                    store(to.add(head), first);
                    store(to.add(head + half), second);
                }
            }
            if !std::ptr::eq(from, to) {
                to.add(rotated)
                    .copy_from_nonoverlapping(from.add(rotated), width - rotated);
            }
        }
    }
}
