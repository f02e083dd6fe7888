//! Decodes and multiplies lines of NF4 codes with vector instructions; the references are the portable
//! loops in `cpu`.

use std::arch::x86_64::*;

use burn::tensor::bf16;

use super::cpu::{CodeLine, LINE_PAIRS};
use super::{TABLE, TABLE_BF16};
use crate::cpu::packed::layout::PanelWordsMut;
use crate::cpu::packed::panels::{COLUMNS, HALF};

/// Decodes to bf16 with the instruction that rounds to bf16. No absmax but 0 is so small that a
/// value is subnormal.
///
/// # Safety
///
/// AVX-512 with BF16; the requirements of `Ordered::decode` in `cpu`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn decode_pairs(lines: &[CodeLine], absmax: &[f32; COLUMNS], to: PanelWordsMut) {
    const ORDER: [u16; 2 * HALF] = {
        let mut order = [0; 2 * HALF];
        let mut i = 0;
        while i < HALF {
            order[2 * i] = i as u16;
            order[2 * i + 1] = (HALF + i) as u16;
            i += 1;
        }
        order
    };
    // SAFETY: arrays of these lengths; the words are guaranteed by the caller.
    unsafe {
        let order = _mm512_loadu_si512(ORDER.as_ptr().cast());
        let table = _mm512_loadu_ps(TABLE.as_ptr());
        let scales = [0, HALF].map(|half| _mm512_loadu_ps(absmax[half..].as_ptr()));
        for (index, line) in lines.iter().enumerate() {
            for (half, scale) in scales.into_iter().enumerate() {
                let mut codes = _mm512_loadu_si512(line.0[half * HALF..].as_ptr().cast());
                for pair in 0..LINE_PAIRS {
                    // The permutation uses only the low four bits.
                    let first = _mm512_permutexvar_ps(codes, table);
                    let second = _mm512_permutexvar_ps(_mm512_srli_epi32::<16>(codes), table);
                    codes = _mm512_srli_epi32::<4>(codes);
                    let first = _mm512_mul_ps(first, scale);
                    let second = _mm512_mul_ps(second, scale);
                    let both = _mm512_cvtne2ps_pbh(second, first);
                    let both = std::mem::transmute::<__m512bh, __m512i>(both);
                    let words = _mm512_permutexvar_epi16(order, both);
                    let line = LINE_PAIRS * index + pair;
                    let to = to.words.add(to.layout.offset(line, half * HALF));
                    _mm512_storeu_si512(to.cast(), words);
                }
            }
        }
    }
}

/// Decodes to f32, or to pairs of bf16 with `PAIRED`; `ROUNDED` rounds to bf16.
///
/// # Safety
///
/// AVX-512; the requirements of `Ordered::decode` in `cpu`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn decode_avx512<const PAIRED: bool, const ROUNDED: bool>(
    lines: &[CodeLine],
    absmax: &[f32; COLUMNS],
    to: PanelWordsMut,
) {
    let (bias, one) = (_mm512_set1_epi32(0x7fff), _mm512_set1_epi32(1));
    let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    // SAFETY: arrays of these lengths; the words are guaranteed by the caller.
    unsafe {
        let table = _mm512_loadu_ps(TABLE.as_ptr());
        let scales = [0, HALF].map(|half| _mm512_loadu_ps(absmax[half..].as_ptr()));
        for (index, line) in lines.iter().enumerate() {
            for (half, scale) in scales.into_iter().enumerate() {
                let mut codes = _mm512_loadu_si512(line.0[half * HALF..].as_ptr().cast());
                for pair in LINE_PAIRS * index..LINE_PAIRS * (index + 1) {
                    // The permutation uses only the low four bits.
                    let [first, second] = [codes, _mm512_srli_epi32::<16>(codes)].map(|codes| {
                        let values = _mm512_mul_ps(_mm512_permutexvar_ps(codes, table), scale);
                        let bits = _mm512_castps_si512(values);
                        if ROUNDED {
                            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), one);
                            _mm512_add_epi32(bits, _mm512_add_epi32(bias, odd))
                        } else {
                            bits
                        }
                    });
                    codes = _mm512_srli_epi32::<4>(codes);
                    if PAIRED {
                        let second = _mm512_and_si512(second, upper);
                        let words = _mm512_or_si512(_mm512_srli_epi32::<16>(first), second);
                        let to = to.words.add(to.layout.offset(pair, half * HALF));
                        _mm512_storeu_si512(to.cast(), words);
                    } else {
                        for (i, bits) in [first, second].into_iter().enumerate() {
                            let bits = match ROUNDED {
                                true => _mm512_and_si512(bits, upper),
                                false => bits,
                            };
                            let to = to.words.add(to.layout.offset(2 * pair + i, half * HALF));
                            _mm512_storeu_si512(to.cast(), bits);
                        }
                    }
                }
            }
        }
    }
}

/// Decodes to f32, or to pairs of bf16 with `PAIRED`; `ROUNDED` rounds to bf16.
///
/// # Safety
///
/// AVX2; the requirements of `Ordered::decode` in `cpu`.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn decode_avx2<const PAIRED: bool, const ROUNDED: bool>(
    lines: &[CodeLine],
    absmax: &[f32; COLUMNS],
    to: PanelWordsMut,
) {
    const LANES: usize = 8;
    let (bias, one) = (_mm256_set1_epi32(0x7fff), _mm256_set1_epi32(1));
    let upper = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
    // SAFETY: arrays of these lengths; the words are guaranteed by the caller.
    unsafe {
        let below = _mm256_loadu_ps(TABLE.as_ptr());
        let above = _mm256_loadu_ps(TABLE[LANES..].as_ptr());
        for (index, line) in lines.iter().enumerate() {
            for column in (0..COLUMNS).step_by(LANES) {
                let scale = _mm256_loadu_ps(absmax[column..].as_ptr());
                let mut codes = _mm256_loadu_si256(line.0[column..].as_ptr().cast());
                for pair in LINE_PAIRS * index..LINE_PAIRS * (index + 1) {
                    let [first, second] = [codes, _mm256_srli_epi32::<16>(codes)].map(|codes| {
                        // The permutation uses only the low three bits; the fourth selects a half.
                        let half = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes));
                        let values = _mm256_blendv_ps(
                            _mm256_permutevar8x32_ps(below, codes),
                            _mm256_permutevar8x32_ps(above, codes),
                            half,
                        );
                        let bits = _mm256_castps_si256(_mm256_mul_ps(values, scale));
                        if ROUNDED {
                            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), one);
                            _mm256_add_epi32(bits, _mm256_add_epi32(bias, odd))
                        } else {
                            bits
                        }
                    });
                    codes = _mm256_srli_epi32::<4>(codes);
                    if PAIRED {
                        let second = _mm256_and_si256(second, upper);
                        let words = _mm256_or_si256(_mm256_srli_epi32::<16>(first), second);
                        let to = to.words.add(to.layout.offset(pair, column));
                        _mm256_storeu_si256(to.cast(), words);
                    } else {
                        for (i, bits) in [first, second].into_iter().enumerate() {
                            let bits = match ROUNDED {
                                true => _mm256_and_si256(bits, upper),
                                false => bits,
                            };
                            let to = to.words.add(to.layout.offset(2 * pair + i, column));
                            _mm256_storeu_si256(to.cast(), bits);
                        }
                    }
                }
            }
        }
    }
}

/// Adds the products of one to four rows of x, `stride` apart, with the lines of a block to `to`. The
/// reference is `multiply_portable` in `cpu`.
///
/// # Safety
///
/// AVX-512 with BF16; each row of x has the depths of the lines.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn multiply(
    lines: &[CodeLine],
    absmax: &[f32; COLUMNS],
    x: *const bf16,
    stride: usize,
    to: &mut [[f32; COLUMNS]],
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match to {
            [a] => multiply_rows(lines, absmax, x, stride, [a]),
            [a, b] => multiply_rows(lines, absmax, x, stride, [a, b]),
            [a, b, c] => multiply_rows(lines, absmax, x, stride, [a, b, c]),
            [a, b, c, d] => multiply_rows(lines, absmax, x, stride, [a, b, c, d]),
            _ => unreachable!("one to four rows"),
        }
    }
}

/// Bytes between the codes that are multiplied and the codes that are prefetched.
const CODES_AHEAD: usize = 4096;

/// # Safety
///
/// Same as for [`multiply`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
#[inline]
unsafe fn multiply_rows<const N: usize>(
    lines: &[CodeLine],
    absmax: &[f32; COLUMNS],
    x: *const bf16,
    stride: usize,
    to: [&mut [f32; COLUMNS]; N],
) {
    // The table twice: the permutation uses five bits, of which the highest belongs to another code.
    const TWICE: [[bf16; 16]; 2] = [TABLE_BF16; 2];
    let mut sums = [[_mm512_setzero_ps(); 2]; N];
    // SAFETY: arrays of these lengths; x is guaranteed by the caller.
    unsafe {
        let table = _mm512_loadu_si512(TWICE.as_ptr().cast());
        for (index, line) in lines.iter().enumerate() {
            let ahead = line.0.as_ptr().cast::<i8>().wrapping_add(CODES_AHEAD);
            _mm_prefetch::<_MM_HINT_T0>(ahead);
            _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(64));
            let mut codes =
                [0, HALF].map(|half| _mm512_loadu_si512(line.0[half..].as_ptr().cast()));
            for pair in 0..LINE_PAIRS {
                let weights = codes.map(|codes| {
                    let words = _mm512_permutexvar_epi16(codes, table);
                    std::mem::transmute::<__m512i, __m512bh>(words)
                });
                codes = codes.map(|codes| _mm512_srli_epi16::<4>(codes));
                for (row, sums) in sums.iter_mut().enumerate() {
                    let depth = 2 * (LINE_PAIRS * index + pair);
                    let word = x.add(row * stride + depth).cast::<i32>().read_unaligned();
                    let word = std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(word));
                    for (sum, weights) in sums.iter_mut().zip(weights) {
                        *sum = _mm512_dpbf16_ps(*sum, word, weights);
                    }
                }
            }
        }
        for (sums, to) in sums.into_iter().zip(to) {
            for (half, sum) in sums.into_iter().enumerate() {
                let to = to[half * HALF..].as_mut_ptr();
                let absmax = _mm512_loadu_ps(absmax[half * HALF..].as_ptr());
                _mm512_storeu_ps(to, _mm512_fmadd_ps(sum, absmax, _mm512_loadu_ps(to)));
            }
        }
    }
}
