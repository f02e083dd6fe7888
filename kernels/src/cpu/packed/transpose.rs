//! Transposes blocks of panels, 32 depths × 32 columns.
//!
//! A weight is packed once, for `x Wᵀ`. Its panels for `dy W` are built from these block by block
//! when a gradient needs them, which takes a few thousandths of the product's time. A permanent
//! second copy would use the memory in which a third of all layers can keep their activations.

use super::layout::{PanelWords, PanelWordsMut};
use super::operand::Operand;
use super::panels::COLUMNS;

/// In portable loops.
///
/// # Safety
///
/// Same as for [`Operand::transpose_block`].
pub(super) unsafe fn portable<T: Operand>(
    PanelWords {
        words: from,
        layout: from_layout,
    }: PanelWords,
    PanelWordsMut {
        words: to,
        layout: to_layout,
    }: PanelWordsMut,
) {
    for line in 0..COLUMNS / T::DEPTHS {
        for column in 0..COLUMNS {
            // A depth of the input is a column of the output.
            let (word, depth) = (column / T::DEPTHS, column % T::DEPTHS);
            // SAFETY: lines and words of the block.
            unsafe {
                let row = from.add(from_layout.offset(word, line * T::DEPTHS));
                let to = to.add(to_layout.offset(line, column));
                *to = T::pack_word(|i| T::unpack_word(*row.add(i), depth));
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use vectors::avx512;

#[cfg(target_arch = "x86_64")]
mod vectors {
    use std::arch::x86_64::{
        __m512, __m512i, _mm512_and_si512, _mm512_castps_si512, _mm512_loadu_ps, _mm512_or_si512,
        _mm512_permutex2var_epi32, _mm512_set_epi32, _mm512_set1_epi32, _mm512_setzero_ps,
        _mm512_slli_epi32, _mm512_srli_epi32, _mm512_storeu_ps, _mm512_storeu_si512,
    };

    use super::{Operand, PanelWords, PanelWordsMut};
    use crate::cpu::tile_avx512::transposed_16;

    /// Loads and transposes 16 words of 16 lines, starting at a line and a column.
    ///
    /// # Safety
    ///
    /// AVX-512F; there are 16 lines at `from`.
    #[target_feature(enable = "avx512f")]
    unsafe fn columns(
        PanelWords {
            words: from,
            layout,
        }: PanelWords,
        at: [usize; 2],
    ) -> [__m512; 16] {
        let [first_line, column] = at;
        let mut rows = [_mm512_setzero_ps(); 16];
        for (line, row) in rows.iter_mut().enumerate() {
            let words = from.wrapping_add(layout.offset(first_line + line, column));
            // SAFETY: guaranteed by the caller.
            *row = unsafe { _mm512_loadu_ps(words.cast()) };
        }
        transposed_16(rows)
    }

    /// # Safety
    ///
    /// AVX-512F, and the requirements of [`Operand::transpose_block`].
    #[target_feature(enable = "avx512f")]
    pub(in super::super) unsafe fn avx512<T: Operand>(from: PanelWords, to: PanelWordsMut) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match T::DEPTHS {
                1 => words(from, to),
                _ => pairs(from, to),
            }
        }
    }

    /// # Safety
    ///
    /// Same as for [`avx512`], with 32 lines.
    #[target_feature(enable = "avx512f")]
    unsafe fn words(from: PanelWords, PanelWordsMut { words: to, layout }: PanelWordsMut) {
        for depths in [0, 16] {
            for outputs in [0, 16] {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    let block = columns(from, [depths, outputs]);
                    for (i, column) in block.into_iter().enumerate() {
                        let to = to.add(layout.offset(outputs + i, depths));
                        _mm512_storeu_ps(to.cast(), column);
                    }
                }
            }
        }
    }

    /// # Safety
    ///
    /// Same as for [`avx512`], with 16 lines of pairs of 16 bits.
    #[target_feature(enable = "avx512f")]
    unsafe fn pairs(from: PanelWords, PanelWordsMut { words: to, layout }: PanelWordsMut) {
        let low_half = _mm512_set1_epi32(0xffff);
        let high_half = _mm512_set1_epi32(0xffff_0000_u32 as i32);
        let first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        let second = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
        for half in [0, 1] {
            // SAFETY: guaranteed by the caller.
            let block = unsafe { columns(from, [0, 16 * half]) };
            for pair in 0..8 {
                // Two columns, each with pairs of 32 depths.
                let [a, b]: [__m512i; 2] = [
                    _mm512_castps_si512(block[2 * pair]),
                    _mm512_castps_si512(block[2 * pair + 1]),
                ];
                let even =
                    _mm512_or_si512(_mm512_and_si512(a, low_half), _mm512_slli_epi32::<16>(b));
                let odd =
                    _mm512_or_si512(_mm512_srli_epi32::<16>(a), _mm512_and_si512(b, high_half));
                // SAFETY: line `8 * half + pair` of 16.
                unsafe {
                    let line = 8 * half + pair;
                    let words = _mm512_permutex2var_epi32(even, first, odd);
                    _mm512_storeu_si512(to.add(layout.offset(line, 0)).cast(), words);
                    let words = _mm512_permutex2var_epi32(even, second, odd);
                    _mm512_storeu_si512(to.add(layout.offset(line, 16)).cast(), words);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::bf16;

    use super::super::layout::PanelLayout;
    use super::{COLUMNS, Operand, PanelWords, PanelWordsMut, portable};

    fn assert_transposed<T: Operand + std::fmt::Debug>(number: impl Fn(usize) -> T) {
        let lines = COLUMNS / T::DEPTHS;
        let value = |depth: usize, column: usize| number(depth * COLUMNS + column);
        // Blocks of panels with a depth of one and of two blocks.
        let layouts = [lines, 2 * lines].map(PanelLayout::new::<T>);
        let places = (0..lines).flat_map(|line| (0..COLUMNS).map(move |column| (line, column)));
        let mut from = vec![0u32; 2 * lines * COLUMNS];
        for (line, column) in places.clone() {
            from[layouts[0].offset(line, column)] =
                T::pack_word(|d| value(line * T::DEPTHS + d, column));
        }
        let [mut plain, mut best] = [0, 1].map(|_| vec![0u32; from.len()]);
        // SAFETY: all slices have the lines of a block.
        unsafe {
            let from = PanelWords {
                words: from.as_ptr(),
                layout: layouts[0],
            };
            portable::<T>(
                from,
                PanelWordsMut {
                    words: plain.as_mut_ptr(),
                    layout: layouts[1],
                },
            );
            T::transpose_block(
                from,
                PanelWordsMut {
                    words: best.as_mut_ptr(),
                    layout: layouts[1],
                },
            );
        }
        assert_eq!(plain, best);
        for (line, column) in places {
            let word = plain[layouts[1].offset(line, column)];
            for d in 0..T::DEPTHS {
                assert_eq!(T::unpack_word(word, d), value(column, line * T::DEPTHS + d));
            }
        }
    }

    #[test]
    fn blocks_of_both_types_are_transposed() {
        assert_transposed(|i| i as f32);
        assert_transposed(|i| bf16::from_bits(i as u16));
    }
}
