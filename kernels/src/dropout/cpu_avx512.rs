//! Dropout masks of 32 columns at once on CPUs with AVX-512, because compilers turn the plain loop
//! into branches.

use std::arch::x86_64::{
    __m512i, __mmask16, __mmask32, _mm512_add_epi64, _mm512_add_ps, _mm512_cmpge_epu16_mask,
    _mm512_mask_storeu_epi16, _mm512_mask_storeu_ps, _mm512_maskz_loadu_epi16,
    _mm512_maskz_loadu_ps, _mm512_mullo_epi64, _mm512_set_epi64, _mm512_set1_epi16,
    _mm512_set1_epi64, _mm512_srli_epi64, _mm512_storeu_si512, _mm512_xor_si512,
};

use burn::tensor::DType;

use super::{ADDED, FIRST_FACTOR, SECOND_FACTOR};
use crate::cpu::lanes_avx512::{TWO, lanes};
use crate::cpu::number::Number;

/// [`super::mix`] of eight values.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn mix(x: __m512i) -> __m512i {
    let number = |x: u64| _mm512_set1_epi64(x as i64);
    let x = _mm512_add_epi64(x, number(ADDED));
    let x = _mm512_xor_si512(x, _mm512_srli_epi64::<30>(x));
    let x = _mm512_mullo_epi64(x, number(FIRST_FACTOR));
    let x = _mm512_xor_si512(x, _mm512_srli_epi64::<27>(x));
    let x = _mm512_mullo_epi64(x, number(SECOND_FACTOR));
    _mm512_xor_si512(x, _mm512_srli_epi64::<31>(x))
}

/// One bit per kept column, starting at `column`; zeros past the row's `width` columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
fn keep_mask(word: u64, threshold: u16, column: usize, width: usize) -> __mmask32 {
    let first = _mm512_set1_epi64(word.wrapping_add(column as u64 / 4) as i64);
    let words = _mm512_add_epi64(first, _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
    let draws = mix(words);
    _mm512_cmpge_epu16_mask(draws, _mm512_set1_epi16(threshold as i16)) & columns(width - column)
}

/// Mask of the first `n` of 32 columns.
fn columns(n: usize) -> __mmask32 {
    if n >= TWO { !0 } else { (1 << n) - 1 }
}

/// Both halves of a mask, with the offsets of their columns.
fn halves(mask: __mmask32) -> [(usize, __mmask16); 2] {
    [(0, mask as __mmask16), (16, (mask >> 16) as __mmask16)]
}

/// Like the portable function of the same name.
///
/// # Safety
///
/// AVX-512; `to` is as long as `from`.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
pub(super) unsafe fn keep<T: Number>(word: u64, threshold: u16, from: &[T], to: &mut [T]) {
    let width = from.len();
    for column in (0..width).step_by(TWO) {
        let kept = keep_mask(word, threshold, column, width);
        // SAFETY: the masks end with the row.
        unsafe {
            let (from, to) = (from.as_ptr().add(column), to.as_mut_ptr().add(column));
            if T::DTYPE == DType::BF16 {
                let values = _mm512_maskz_loadu_epi16(kept, from.cast());
                // Masked 16-bit stores are slow on some CPUs.
                if width - column >= TWO {
                    _mm512_storeu_si512(to.cast(), values);
                } else {
                    _mm512_mask_storeu_epi16(to.cast(), columns(width - column), values);
                }
            } else {
                for (first, kept) in halves(kept) {
                    let n = (width - column).saturating_sub(first);
                    let values = _mm512_maskz_loadu_ps(kept, from.wrapping_add(first).cast());
                    _mm512_mask_storeu_ps(to.wrapping_add(first).cast(), lanes(n), values);
                }
            }
        }
    }
}

/// Like the portable function of the same name.
///
/// # Safety
///
/// AVX-512; `to` is as long as `from`.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
pub(super) unsafe fn add_kept(word: u64, threshold: u16, from: &[f32], to: &mut [f32]) {
    let width = from.len();
    for column in (0..width).step_by(TWO) {
        for (first, kept) in halves(keep_mask(word, threshold, column, width)) {
            let (from, to) = (
                from.as_ptr().wrapping_add(column + first),
                to.as_mut_ptr().wrapping_add(column + first),
            );
            // SAFETY: the masks end with the row.
            unsafe {
                let sums = _mm512_add_ps(
                    _mm512_maskz_loadu_ps(kept, to),
                    _mm512_maskz_loadu_ps(kept, from),
                );
                _mm512_mask_storeu_ps(to, kept, sums);
            }
        }
    }
}
