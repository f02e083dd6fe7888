//! Packs strips and panels on CPUs with AVX2: four words of eight or twelve rows at a time.

use std::arch::x86_64::{
    __m128, __m256, __m256i, _mm_castps_si128, _mm_cvtepu16_epi32, _mm_loadl_epi64, _mm_loadu_ps,
    _mm_loadu_si128, _mm_storeu_ps, _mm256_and_si256, _mm256_andnot_si256, _mm256_castps_si256,
    _mm256_castps256_ps128, _mm256_castsi128_si256, _mm256_cvtepu16_epi32, _mm256_loadu_ps,
    _mm256_or_si256, _mm256_permute2x128_si256, _mm256_set1_epi32, _mm256_slli_epi32,
    _mm256_srli_epi32, _mm256_storeu_ps, _mm256_storeu_si256, _mm256_unpackhi_epi32,
    _mm256_unpacklo_epi32,
};

use super::layout::{PanelWords, PanelWordsMut};
use super::operand::Operand;
use super::panels::COLUMNS;
use super::strips::StripRows;
use super::tile::ROWS;
use crate::cpu::lanes_avx2::{LANES, WORDS, eight_rows, four_of_eight, four_of_four, lower, upper};
use crate::cpu::prefetch::prefetch_l1;

/// Prefetch distance in words of a row.
const WORDS_AHEAD: usize = 32;

/// Packs at most [`ROWS`] rows into a strip.
///
/// # Safety
///
/// AVX2; rows and space as for [`super::strips::pack_all`], and `rows.depth_stride` is 1.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn strip<T: Operand>(rows: StripRows<T>, to: *mut f32) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match T::widens() {
            true => strip_of::<T, true>(rows, to),
            false => strip_of::<T, false>(rows, to),
        }
    }
}

/// # Safety
///
/// Same as for [`strip`].
#[target_feature(enable = "avx2,fma")]
unsafe fn strip_of<T: Operand, const WIDENS: bool>(rows: StripRows<T>, to: *mut f32) {
    let width = if WIDENS { 2 * ROWS } else { ROWS };
    let mut starts = [rows.first; ROWS];
    for (i, start) in starts.iter_mut().enumerate() {
        // Missing rows repeat the last row.
        let row = i.min(rows.rows - 1);
        *start = rows.first.wrapping_add(row * rows.stride);
    }
    let whole = rows.words / WORDS * WORDS;
    for p in (0..whole).step_by(WORDS) {
        let [r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11] =
            starts.map(|start| start.wrapping_add(p * T::DEPTHS).cast::<f32>());
        if p.is_multiple_of(16) {
            for row in [r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11] {
                prefetch_l1(row.wrapping_add(WORDS_AHEAD));
            }
        }
        // SAFETY: each row has these words, and the strip has a line for each.
        unsafe {
            let [e0, e1, e2, e3] = four_of_eight([r0, r1, r2, r3, r4, r5, r6, r7]);
            let [f0, f1, f2, f3] = four_of_four([r8, r9, r10, r11]);
            let to = to.wrapping_add(p * width);
            write_words::<WIDENS>(to, e0, f0);
            write_words::<WIDENS>(to.wrapping_add(width), e1, f1);
            write_words::<WIDENS>(to.wrapping_add(2 * width), e2, f2);
            write_words::<WIDENS>(to.wrapping_add(3 * width), e3, f3);
        }
    }
    for p in whole..rows.words {
        for (i, start) in starts.iter().enumerate() {
            for depth in 0..if WIDENS { T::DEPTHS } else { 1 } {
                let line = to.wrapping_add(p * width + depth * ROWS + i);
                // SAFETY: as above.
                unsafe {
                    let numbers = start.wrapping_add(p * T::DEPTHS);
                    *line = if WIDENS {
                        (*numbers.wrapping_add(depth)).widen()
                    } else {
                        numbers.cast::<f32>().read_unaligned()
                    };
                }
            }
        }
    }
}

/// Stores a word of each of twelve rows as a line of a strip, or as two lines of f32 if words are
/// pairs that are widened.
///
/// # Safety
///
/// AVX2; there is space for the lines.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn write_words<const WIDENS: bool>(to: *mut f32, eight: __m256, four: __m128) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if WIDENS {
            let (pairs, second_pairs) = (_mm256_castps_si256(eight), _mm_castps_si128(four));
            let second_pairs = _mm256_castsi128_si256(second_pairs);
            write_line(
                to,
                lower(pairs),
                _mm256_castps256_ps128(lower(second_pairs)),
            );
            let to = to.wrapping_add(ROWS);
            write_line(
                to,
                upper(pairs),
                _mm256_castps256_ps128(upper(second_pairs)),
            );
        } else {
            write_line(to, eight, four);
        }
    }
}

/// # Safety
///
/// AVX2; there is space for twelve elements.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn write_line(to: *mut f32, eight: __m256, four: __m128) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        _mm256_storeu_ps(to, eight);
        _mm_storeu_ps(to.add(LANES), four);
    }
}

/// Packs rows that are contiguous along their index into strips, depth by depth, so that reads are
/// contiguous.
///
/// # Safety
///
/// AVX2; `rows.stride` is 1, each row has the depths of its words, and elements are f32 or widened.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn pack_columns<T: Operand>(rows: StripRows<T>, to: &mut [f32]) {
    let line = ROWS * T::strip_lines();
    assert!(
        T::strip_lines() == T::DEPTHS,
        "strips need one line per depth"
    );
    assert!(
        to.len() >= rows.rows.div_ceil(ROWS) * rows.words * line,
        "the strips do not fit in the memory"
    );
    for depth in 0..rows.words * T::DEPTHS {
        for (strip, first) in (0..rows.rows).step_by(ROWS).enumerate() {
            let from = rows.first.wrapping_add(depth * rows.depth_stride + first);
            let to = to[strip * rows.words * line + depth * ROWS..][..ROWS].as_mut_ptr();
            let n = rows.rows - first;
            // SAFETY: the depth has an element of every row, and the strip has a line for it.
            unsafe {
                if n < ROWS {
                    for i in 0..n {
                        *to.add(i) = (*from.add(i)).widen();
                    }
                } else if T::DEPTHS == 1 {
                    let from = from.cast::<f32>();
                    write_line(to, _mm256_loadu_ps(from), _mm_loadu_ps(from.add(LANES)));
                } else {
                    let eight = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
                    let four = _mm_cvtepu16_epi32(_mm_loadl_epi64(from.add(LANES).cast()));
                    let four = lower(_mm256_castsi128_si256(four));
                    write_line(to, lower(eight), _mm256_castps256_ps128(four));
                }
            }
        }
    }
}

/// Transposes a block of panels.
///
/// # Safety
///
/// AVX2, and the requirements of [`Operand::transpose_block`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn transpose_block<T: Operand>(
    PanelWords {
        words: from,
        layout: from_layout,
    }: PanelWords,
    PanelWordsMut { words: to, layout }: PanelWordsMut,
) {
    for first in (0..COLUMNS / T::DEPTHS).step_by(LANES) {
        for column in (0..COLUMNS).step_by(WORDS) {
            // Four words of eight lines; each of them becomes a word of one line.
            let words = from.wrapping_add(from_layout.offset(first, column)).cast();
            // SAFETY: guaranteed by the caller.
            unsafe {
                let block = four_of_eight(eight_rows(words, size_of::<u32>() * from_layout.line));
                if T::DEPTHS == 1 {
                    for (i, words) in block.into_iter().enumerate() {
                        _mm256_storeu_ps(to.add(layout.offset(column + i, first)).cast(), words);
                    }
                } else {
                    let block = block.map(|words| _mm256_castps_si256(words));
                    for (i, [a, b]) in block.as_chunks().0.iter().enumerate() {
                        write_pairs(*a, *b, to.add(layout.offset(column / 2 + i, 2 * first)));
                    }
                }
            }
        }
    }
}

/// Combines two columns, each with pairs of sixteen depths, into sixteen pairs of columns.
///
/// # Safety
///
/// AVX2; there is space for sixteen words.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn write_pairs(a: __m256i, b: __m256i, to: *mut u32) {
    let low_half = _mm256_set1_epi32(0xffff);
    let even = _mm256_or_si256(_mm256_and_si256(a, low_half), _mm256_slli_epi32::<16>(b));
    let odd = _mm256_or_si256(_mm256_srli_epi32::<16>(a), _mm256_andnot_si256(low_half, b));
    // In each 128-bit lane: depths 0 to 3 of 8, then 4 to 7.
    let near = _mm256_unpacklo_epi32(even, odd);
    let far = _mm256_unpackhi_epi32(even, odd);
    // SAFETY: guaranteed by the caller.
    unsafe {
        let first = _mm256_permute2x128_si256::<0x20>(near, far);
        _mm256_storeu_si256(to.cast(), first);
        let second = _mm256_permute2x128_si256::<0x31>(near, far);
        _mm256_storeu_si256(to.add(LANES).cast(), second);
    }
}
