//! Rotation of heads on CPUs with AVX2, eight pairs at a time.

use std::arch::x86_64::{_mm256_fmadd_ps, _mm256_fmsub_ps, _mm256_mul_ps, _mm256_set1_ps};

use super::cpu::Tables;
use crate::cpu::lanes_avx2::{LANES, load, store};
use crate::cpu::number::Number;

/// Rows of `shape[0]` numbers, of which the first `shape[1]` are turned, whole heads, and the others
/// copied. `to` may be `from`.
///
/// # Safety
///
/// AVX2; `from` and `to` have as many rows as the tables have lines, of a multiple of 8 numbers.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn rotate_rows<T: Number>(
    from: *const T,
    to: *mut T,
    [width, turned]: [usize; 2],
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
        // SAFETY: as the caller promises: eight numbers of each half of a head and of each line of the
        // tables.
        unsafe {
            let (from, to) = (from.add(row * width), to.add(row * width));
            for first in (0..half).step_by(LANES) {
                let cos = load(cos.as_ptr().add(first));
                let sin = _mm256_mul_ps(load(sin.as_ptr().add(first)), sign);
                for head in (first..turned).step_by(tables.head) {
                    let (x1, x2) = (load(from.add(head)), load(from.add(head + half)));
                    let first = _mm256_fmsub_ps(x1, cos, _mm256_mul_ps(x2, sin));
                    let second = _mm256_fmadd_ps(x2, cos, _mm256_mul_ps(x1, sin));
                    store(to.add(head), first);
                    store(to.add(head + half), second);
                }
            }
            if !std::ptr::eq(from, to) {
                to.add(turned)
                    .copy_from_nonoverlapping(from.add(turned), width - turned);
            }
        }
    }
}
