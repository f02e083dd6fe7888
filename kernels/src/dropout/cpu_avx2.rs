//! Dropout masks of 16 columns at once on CPUs with AVX2, because compilers turn the plain loop
//! into branches.

use std::arch::x86_64::{
    __m256i, _mm256_add_epi64, _mm256_add_ps, _mm256_and_ps, _mm256_and_si256, _mm256_castsi256_ps,
    _mm256_castsi256_si128, _mm256_cmpeq_epi16, _mm256_cvtepi16_epi32, _mm256_extracti128_si256,
    _mm256_loadu_si256, _mm256_max_epu16, _mm256_mul_epu32, _mm256_set_epi64x, _mm256_set1_epi16,
    _mm256_set1_epi64x, _mm256_slli_epi64, _mm256_srli_epi64, _mm256_storeu_si256,
    _mm256_xor_si256,
};

use burn::tensor::DType;

use super::{ADDED, FIRST_FACTOR, SECOND_FACTOR};
use crate::cpu::lanes_avx2::{LANES, load, store};
use crate::cpu::number::Number;

/// Columns for which one register has random words.
pub(super) const COLUMNS: usize = 16;

/// The lower 64 bits of a product with a factor.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn times(x: __m256i, factor: u64) -> __m256i {
    let [low, high] = [factor, factor >> 32].map(|half| _mm256_set1_epi64x(half as i64));
    let mixed = _mm256_add_epi64(
        _mm256_mul_epu32(x, high),
        _mm256_mul_epu32(_mm256_srli_epi64::<32>(x), low),
    );
    _mm256_add_epi64(_mm256_mul_epu32(x, low), _mm256_slli_epi64::<32>(mixed))
}

/// [`super::mix`] of four values.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn mix(x: __m256i) -> __m256i {
    let x = _mm256_add_epi64(x, _mm256_set1_epi64x(ADDED as i64));
    let x = times(
        _mm256_xor_si256(x, _mm256_srli_epi64::<30>(x)),
        FIRST_FACTOR,
    );
    let x = times(
        _mm256_xor_si256(x, _mm256_srli_epi64::<27>(x)),
        SECOND_FACTOR,
    );
    _mm256_xor_si256(x, _mm256_srli_epi64::<31>(x))
}

/// All ones for each kept column, of the sixteen starting at `column`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn keep_mask(word: u64, threshold: u16, column: usize) -> __m256i {
    let first = _mm256_set1_epi64x(word.wrapping_add(column as u64 / 4) as i64);
    let draws = mix(_mm256_add_epi64(first, _mm256_set_epi64x(3, 2, 1, 0)));
    let larger = _mm256_max_epu16(draws, _mm256_set1_epi16(threshold as i16));
    _mm256_cmpeq_epi16(larger, draws)
}

/// Both halves of a mask, widened to 32 bits per column.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn halves(kept: __m256i) -> [__m256i; 2] {
    [
        _mm256_cvtepi16_epi32(_mm256_castsi256_si128(kept)),
        _mm256_cvtepi16_epi32(_mm256_extracti128_si256::<1>(kept)),
    ]
}

/// Like the portable function of the same name, for whole registers of columns; returns the number
/// of columns processed.
///
/// # Safety
///
/// AVX2; `to` is as long as `from`.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn keep<T: Number>(word: u64, threshold: u16, from: &[T], to: &mut [T]) -> usize {
    let whole = from.len() / COLUMNS * COLUMNS;
    for column in (0..whole).step_by(COLUMNS) {
        let mask = keep_mask(word, threshold, column);
        // SAFETY: there are sixteen elements at this offset.
        unsafe {
            let (from, to) = (from.as_ptr().add(column), to.as_mut_ptr().add(column));
            if T::DTYPE == DType::BF16 {
                let values = _mm256_and_si256(mask, _mm256_loadu_si256(from.cast()));
                _mm256_storeu_si256(to.cast(), values);
            } else {
                for (half, mask) in halves(mask).into_iter().enumerate() {
                    let values = load(from.add(half * LANES));
                    let values = _mm256_and_ps(_mm256_castsi256_ps(mask), values);
                    store(to.add(half * LANES), values);
                }
            }
        }
    }
    whole
}

/// Like the portable function of the same name, for whole registers of columns; returns the number
/// of columns processed.
///
/// # Safety
///
/// AVX2; `to` is as long as `from`.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn add_kept(word: u64, threshold: u16, from: &[f32], to: &mut [f32]) -> usize {
    let whole = from.len() / COLUMNS * COLUMNS;
    for column in (0..whole).step_by(COLUMNS) {
        for (half, kept) in halves(keep_mask(word, threshold, column))
            .into_iter()
            .enumerate()
        {
            let first = column + half * LANES;
            // SAFETY: there are eight elements at this offset.
            unsafe {
                let added =
                    _mm256_and_ps(_mm256_castsi256_ps(kept), load(from.as_ptr().add(first)));
                let to = to.as_mut_ptr().add(first);
                store(to, _mm256_add_ps(load(to), added));
            }
        }
    }
    whole
}
