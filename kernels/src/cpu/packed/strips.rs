//! The left operand of a product, packed while it is used: strips of 12 rows, one word of each at
//! a time.
//!
//! Rows that are a multiple of 4 KiB apart would all fall into the same few lines of the first
//! level of cache and drive each other out; in a strip, what a tile reads lies in one piece.

use super::operand::Operand;
use super::tile::ROWS;
#[cfg(target_arch = "x86_64")]
use crate::cpu::isa::Isa;

/// Rows to be packed, as words of their depths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StripRows<T> {
    /// First number of the first row.
    pub(crate) first: *const T,
    /// Numbers from one row to the next.
    pub(crate) stride: usize,
    /// Numbers from one depth to the next; 1 where a word holds several.
    pub(crate) depth_stride: usize,
    /// At least 1, at most [`ROWS`].
    pub(crate) rows: usize,
    /// Words of each row.
    pub(crate) words: usize,
}

/// Writes `words` lines of [`ROWS`] words each to `to`; rows that do not exist hold any value.
///
/// # Safety
///
/// Every row holds the depths of `words` words.
pub(crate) unsafe fn pack<T: Operand>(rows: StripRows<T>, to: &mut [f32]) {
    assert!(to.len() >= rows.words * ROWS, "room for a strip");
    #[cfg(target_arch = "x86_64")]
    if rows.depth_stride == 1 && Isa::detect() == Isa::Avx512 {
        // SAFETY: detected; room was checked, rows are the caller's promise.
        unsafe { avx512::transpose(rows, to.as_mut_ptr(), (ROWS, ROWS)) };
        return;
    }
    if rows.stride == 1 {
        for (p, line) in to.chunks_exact_mut(ROWS).take(rows.words).enumerate() {
            let depth = |i: usize| {
                let first = (p * T::DEPTHS + i) * rows.depth_stride;
                // SAFETY: each depth has a number of every row, side by side.
                unsafe { std::slice::from_raw_parts(rows.first.wrapping_add(first), rows.rows) }
            };
            let [low, high] = [depth(0), depth(T::DEPTHS - 1)];
            for ((word, &low), &high) in line.iter_mut().zip(low).zip(high) {
                *word = f32::from_bits(T::word(|i| if i == 0 { low } else { high }));
            }
        }
        return;
    }
    for i in 0..rows.rows {
        let row = rows.first.wrapping_add(i * rows.stride);
        for (p, line) in to.chunks_exact_mut(ROWS).take(rows.words).enumerate() {
            // SAFETY: as the caller promises.
            let word = T::word(|i| unsafe { *row.add((p * T::DEPTHS + i) * rows.depth_stride) });
            line[i] = f32::from_bits(word);
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use std::arch::x86_64::{_mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_setzero_ps};

    use super::{Operand, StripRows};
    use crate::cpu::tile_avx512::{lanes, transposed_16};

    /// Writes a line of `width` words, one of each row, for each word of the rows, every
    /// `line_stride` words; rows that do not exist are zero.
    ///
    /// # Safety
    ///
    /// AVX-512F; at most 16 rows as [`super::pack`] demands, with depths side by side; room for all
    /// lines at `to`.
    #[target_feature(enable = "avx512f")]
    pub(in super::super) unsafe fn transpose<T: Operand>(
        rows: StripRows<T>,
        to: *mut f32,
        (line_stride, width): (usize, usize),
    ) {
        let written = lanes(width);
        for p in (0..rows.words).step_by(16) {
            let mask = lanes(rows.words - p);
            let mut block = [_mm512_setzero_ps(); 16];
            for (i, block) in block.iter_mut().enumerate().take(rows.rows) {
                let row = rows
                    .first
                    .wrapping_add(i * rows.stride + p * T::DEPTHS)
                    .cast::<f32>();
                // SAFETY: words outside the mask are not touched.
                *block = unsafe { _mm512_maskz_loadu_ps(mask, row) };
            }
            let columns = transposed_16(block);
            for (line, column) in columns.into_iter().enumerate().take(rows.words - p) {
                // SAFETY: a line of `width` words for each word of the rows.
                unsafe { _mm512_mask_storeu_ps(to.add((p + line) * line_stride), written, column) };
            }
        }
    }
}
