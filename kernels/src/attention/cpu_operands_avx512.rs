//! Packs rows into panels on CPUs with AVX-512, for rows that have the panels' dtype.
//!
//! A unit of 32 bits is one f32 or two adjacent bf16; both are moved the same way.

use std::arch::x86_64::{
    __m512i, _mm256_loadu_si256, _mm256_maskz_loadu_epi16, _mm256_setzero_si256,
    _mm512_castpd_si512, _mm512_castsi512_pd, _mm512_cvtepu16_epi32, _mm512_maskz_loadu_epi32,
    _mm512_or_si512, _mm512_setzero_si512, _mm512_shuffle_i32x4, _mm512_slli_epi32,
    _mm512_storeu_si512, _mm512_unpackhi_epi32, _mm512_unpackhi_pd, _mm512_unpacklo_epi32,
    _mm512_unpacklo_pd,
};

use super::cpu_tile::PANEL;
use crate::cpu::lanes_avx512::lanes;

/// Transposes rows of units into `[rows / PANEL, units, PANEL]`, padded with zero rows.
///
/// # Safety
///
/// AVX-512; row `i` has `units` units at offset `i * stride` of `from`, and `to` has space for the
/// result.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
pub(super) unsafe fn transpose(
    from: *const f32,
    stride: usize,
    [rows, units]: [usize; 2],
    to: &mut [f32],
) {
    assert!(
        to.len() >= rows.next_multiple_of(PANEL) * units,
        "the target must have space for all panels"
    );
    for (first, to) in (0..rows)
        .step_by(PANEL)
        .zip(to.chunks_exact_mut(units * PANEL))
    {
        for half in [0, 16] {
            let some = rows.saturating_sub(first + half).min(16);
            for unit in (0..units).step_by(16) {
                let mask = lanes(units - unit);
                // SAFETY: lanes under the mask are existing rows; `to` has a line of `PANEL` for
                // each unit.
                unsafe {
                    let rows: [__m512i; 16] = std::array::from_fn(|i| {
                        if i < some {
                            let row = from.add((first + half + i) * stride + unit);
                            _mm512_maskz_loadu_epi32(mask, row.cast())
                        } else {
                            _mm512_setzero_si512()
                        }
                    });
                    let columns = transpose_16(rows);
                    for (i, column) in columns.into_iter().enumerate().take(units - unit) {
                        let line = to.as_mut_ptr().add((unit + i) * PANEL + half);
                        _mm512_storeu_si512(line.cast(), column);
                    }
                }
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn transpose_16(rows: [__m512i; 16]) -> [__m512i; 16] {
    // Quarters hold 4 × 4 blocks: transpose within the blocks first, then the blocks.
    let mut blocks = rows;
    for four in 0..4 {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| rows[4 * four + i]);
        let pairs = [
            (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d)),
            (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d)),
        ];
        for (i, (ab, cd)) in pairs.into_iter().enumerate() {
            let (ab, cd) = (_mm512_castsi512_pd(ab), _mm512_castsi512_pd(cd));
            blocks[4 * four + 2 * i] = _mm512_castpd_si512(_mm512_unpacklo_pd(ab, cd));
            blocks[4 * four + 2 * i + 1] = _mm512_castpd_si512(_mm512_unpackhi_pd(ab, cd));
        }
    }
    // Quarter `q` of `blocks[4 f + i]`: rows `4 f..4 f + 4` of column `4 q + i`.
    let mut columns = blocks;
    for i in 0..4 {
        let [a, b, c, d] = [0, 4, 8, 12].map(|four| blocks[four + i]);
        let (ab_even, ab_odd) = (
            _mm512_shuffle_i32x4::<0x88>(a, b),
            _mm512_shuffle_i32x4::<0xdd>(a, b),
        );
        let (cd_even, cd_odd) = (
            _mm512_shuffle_i32x4::<0x88>(c, d),
            _mm512_shuffle_i32x4::<0xdd>(c, d),
        );
        columns[i] = _mm512_shuffle_i32x4::<0x88>(ab_even, cd_even);
        columns[4 + i] = _mm512_shuffle_i32x4::<0x88>(ab_odd, cd_odd);
        columns[8 + i] = _mm512_shuffle_i32x4::<0xdd>(ab_even, cd_even);
        columns[12 + i] = _mm512_shuffle_i32x4::<0xdd>(ab_odd, cd_odd);
    }
    columns
}

/// Packs rows of `c` 16-bit elements into lines of pairs of rows: `[c / PANEL, rows / 2, PANEL]`,
/// padded with zero rows and columns.
///
/// # Safety
///
/// AVX-512; row `i` has `c` elements at offset `i * stride` of `from`, and `to` has space for the
/// result.
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
pub(super) unsafe fn interleave_rows(
    from: *const u16,
    stride: usize,
    [rows, c]: [usize; 2],
    to: &mut [f32],
) {
    let panel = rows.div_ceil(2) * PANEL;
    assert!(
        to.len() >= c.div_ceil(PANEL) * panel,
        "the target must have space for all panels"
    );
    for pair in 0..rows.div_ceil(2) {
        for first in (0..c.next_multiple_of(PANEL)).step_by(16) {
            let mask = lanes(c.saturating_sub(first));
            // SAFETY: lanes under the mask are existing rows; `to` has space for all panels.
            unsafe {
                let row = from.wrapping_add(2 * pair * stride + first);
                let load = |row: *const u16| match mask {
                    0 => _mm256_setzero_si256(),
                    0xffff => _mm256_loadu_si256(row.cast()),
                    mask => _mm256_maskz_loadu_epi16(mask, row.cast()),
                };
                let upper = _mm512_cvtepu16_epi32(load(row));
                let lower = if 2 * pair + 1 < rows {
                    _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load(row.wrapping_add(stride))))
                } else {
                    _mm512_setzero_si512()
                };
                let offset = first / PANEL * panel + pair * PANEL + first % PANEL;
                let line = to.as_mut_ptr().add(offset);
                _mm512_storeu_si512(line.cast(), _mm512_or_si512(upper, lower));
            }
        }
    }
}
