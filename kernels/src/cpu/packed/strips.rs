//! The left operand of a product, packed while it is used: strips of 12 rows, with one word of each
//! row at a time.
//!
//! Rows whose distance is a multiple of 4 KiB would map to the same few L1 cache sets and evict
//! each other; in a strip, the input of a tile is contiguous.

use super::operand::Operand;
#[cfg(target_arch = "x86_64")]
use super::strips_avx2;
use super::tile::ROWS;
#[cfg(target_arch = "x86_64")]
use crate::cpu::isa::Isa;

/// Rows to pack, as words of their depths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StripRows<T> {
    /// First element of the first row.
    pub(crate) first: *const T,
    /// Elements from one row to the next.
    pub(crate) stride: usize,
    /// Elements from one depth to the next; 1 if a word holds several depths.
    pub(crate) depth_stride: usize,
    /// At least 1.
    pub(crate) rows: usize,
    /// Words per row.
    pub(crate) words: usize,
}

/// Strips that are packed together if rows are contiguous along their index. More strips would map
/// to the same few L1 cache sets; fewer would read less than a cache line of each depth.
#[cfg(target_arch = "x86_64")]
const COLUMN_STRIPS: usize = 6;

/// Packs any number of rows into consecutive strips.
///
/// # Safety
///
/// Every row has the depths of `words` words.
pub(crate) unsafe fn pack_all<T: Operand>(rows: StripRows<T>, to: &mut [f32]) {
    if rows.words == 0 {
        return;
    }
    let strip = rows.words * ROWS * T::strip_lines();
    #[cfg(target_arch = "x86_64")]
    if rows.stride == 1 && Isa::detect() >= Isa::Avx2 {
        for (i, to) in to.chunks_mut(COLUMN_STRIPS * strip).enumerate() {
            let strip_rows = rows.range(i * COLUMN_STRIPS * ROWS, COLUMN_STRIPS * ROWS);
            // SAFETY: the CPU feature was detected; without AVX-512 all elements are f32 or
            // widened. Rows are guaranteed by the caller.
            unsafe {
                match Isa::detect() {
                    Isa::Avx512 => avx512::pack_columns(strip_rows, to),
                    _ => strips_avx2::pack_columns(strip_rows, to),
                }
            }
        }
        return;
    }
    for (i, to) in to.chunks_exact_mut(strip).enumerate() {
        // SAFETY: guaranteed by the caller.
        unsafe { pack(rows.range(i * ROWS, ROWS), to) };
    }
}

impl<T> StripRows<T> {
    /// At most `n` rows, starting at row `first`.
    fn range(self, first: usize, n: usize) -> Self {
        Self {
            first: self.first.wrapping_add(first * self.stride),
            rows: n.min(self.rows.saturating_sub(first)),
            ..self
        }
    }
}

/// Writes [`Operand::strip_lines`] lines of [`ROWS`] words to `to` for each word of the rows;
/// missing rows have arbitrary values.
///
/// # Safety
///
/// At most [`ROWS`] rows, each with the depths of `words` words.
unsafe fn pack<T: Operand>(rows: StripRows<T>, to: &mut [f32]) {
    let width = ROWS * T::strip_lines();
    assert!(
        to.len() >= rows.words * width,
        "the strip does not fit in the memory"
    );
    #[cfg(target_arch = "x86_64")]
    if rows.depth_stride == 1 && Isa::detect() >= Isa::Avx2 {
        let to = to.as_mut_ptr();
        // SAFETY: the CPU feature was detected; the size was checked, and rows are guaranteed by
        // the caller.
        unsafe {
            match (Isa::detect(), T::widens()) {
                (Isa::Avx512, true) => avx512::transpose_widening(rows, to),
                (Isa::Avx512, false) => avx512::strip(rows, to),
                _ => strips_avx2::strip(rows, to),
            }
        }
        return;
    }
    assert!(!T::widens(), "widened rows must be contiguous");
    if rows.stride == 1 {
        for (p, line) in to.chunks_exact_mut(ROWS).take(rows.words).enumerate() {
            let depth = |i: usize| {
                let first = (p * T::DEPTHS + i) * rows.depth_stride;
                // SAFETY: each depth has an element of every row, contiguous.
                unsafe { std::slice::from_raw_parts(rows.first.wrapping_add(first), rows.rows) }
            };
            let [low, high] = [depth(0), depth(T::DEPTHS - 1)];
            for ((word, &low), &high) in line.iter_mut().zip(low).zip(high) {
                *word = f32::from_bits(T::pack_word(|i| if i == 0 { low } else { high }));
            }
        }
        return;
    }
    for i in 0..rows.rows {
        let row = rows.first.wrapping_add(i * rows.stride);
        for (p, line) in to.chunks_exact_mut(ROWS).take(rows.words).enumerate() {
            // SAFETY: guaranteed by the caller.
            let word =
                T::pack_word(|i| unsafe { *row.add((p * T::DEPTHS + i) * rows.depth_stride) });
            line[i] = f32::from_bits(word);
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use std::arch::x86_64::{
        __m512, __m512i, __mmask16, _mm256_maskz_loadu_epi16, _mm512_and_si512,
        _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cvtepu16_epi32, _mm512_loadu_ps,
        _mm512_mask_storeu_epi32, _mm512_mask_storeu_ps, _mm512_maskz_loadu_epi32,
        _mm512_maskz_loadu_ps, _mm512_or_si512, _mm512_set1_epi32, _mm512_setzero_ps,
        _mm512_slli_epi32, _mm512_srli_epi32, _mm512_storeu_ps,
    };

    use super::{Operand, ROWS, StripRows};
    use crate::cpu::lanes_avx512::lanes;
    use crate::cpu::tile_avx512::{prefetch_l1, transpose_lanes, transpose_quads, transposed_16};

    /// Writes a line of `width` words (one per row) for each word of the rows, `line_stride` words
    /// apart; missing rows are zero.
    ///
    /// # Safety
    ///
    /// AVX-512F; at most 16 rows as [`super::pack`] requires, with contiguous depths; space for all
    /// lines at `to`.
    #[target_feature(enable = "avx512f")]
    pub(in super::super) unsafe fn transpose<T: Operand>(
        rows: StripRows<T>,
        to: *mut f32,
        line_stride: usize,
        width: usize,
    ) {
        let written = lanes(width);
        for p in (0..rows.words).step_by(16) {
            // SAFETY: guaranteed by the caller.
            let columns = unsafe { words_of_rows(&rows, p) };
            for (line, column) in columns.into_iter().enumerate().take(rows.words - p) {
                // SAFETY: there is a line of `width` words for each word of the rows.
                unsafe { _mm512_mask_storeu_ps(to.add((p + line) * line_stride), written, column) };
            }
        }
    }

    /// Packs a strip, writing whole cache lines as long as enough words remain.
    ///
    /// # Safety
    ///
    /// AVX-512F; rows and space as for [`super::pack`].
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn strip<T: Operand>(rows: StripRows<T>, to: *mut f32) {
        let whole = match rows.rows {
            ROWS => rows.words / 16 * 16,
            _ => 0,
        };
        let remaining = StripRows {
            first: rows.first.wrapping_add(whole * T::DEPTHS),
            words: rows.words - whole,
            ..rows
        };
        // SAFETY: twelve rows have these words; the rest is guaranteed by the caller.
        unsafe {
            for p in (0..whole).step_by(16) {
                let first = rows.first.wrapping_add(p * T::DEPTHS);
                whole_lines(first, rows.stride, to.add(p * ROWS));
            }
            transpose(remaining, to.add(whole * ROWS), ROWS, ROWS);
        }
    }

    /// Packs sixteen words of twelve rows, `stride` elements apart, into twelve cache lines.
    ///
    /// # Safety
    ///
    /// AVX-512F; the words can be read and the lines written.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn whole_lines<T: Operand>(first: *const T, stride: usize, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            // Register `s` of a quad of rows has words `s`, `4 + s`, `8 + s` and `12 + s` in its
            // lanes.
            let [a0, a1, a2, a3] = quad(first, stride);
            let [b0, b1, b2, b3] = quad(first.wrapping_add(4 * stride), stride);
            let [c0, c1, c2, c3] = quad(first.wrapping_add(8 * stride), stride);
            // Writes three lines of four words each, for each group of four words.
            write_every_third([a0, b0, c0, a1], to);
            write_every_third([b1, c1, a2, b2], to.add(16));
            write_every_third([c2, a3, b3, c3], to.add(32));
        }
    }

    /// Sixteen words of four rows, with the four words of each depth in one lane.
    ///
    /// # Safety
    ///
    /// Same as for [`whole_lines`].
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn quad<T: Operand>(first: *const T, stride: usize) -> [__m512; 4] {
        // Rows are written out: a closure would not be inlined and would spill registers to memory.
        let r0 = first.cast::<f32>();
        let r1 = first.wrapping_add(stride).cast::<f32>();
        let r2 = first.wrapping_add(2 * stride).cast::<f32>();
        let r3 = first.wrapping_add(3 * stride).cast::<f32>();
        prefetch_l1::<1>(r0.wrapping_add(WORDS_AHEAD));
        prefetch_l1::<1>(r1.wrapping_add(WORDS_AHEAD));
        prefetch_l1::<1>(r2.wrapping_add(WORDS_AHEAD));
        prefetch_l1::<1>(r3.wrapping_add(WORDS_AHEAD));
        // SAFETY: guaranteed by the caller.
        unsafe {
            transpose_quads([
                _mm512_loadu_ps(r0),
                _mm512_loadu_ps(r1),
                _mm512_loadu_ps(r2),
                _mm512_loadu_ps(r3),
            ])
        }
    }

    /// Writes the first lanes of four registers as a line, the second lanes three lines further,
    /// and so on.
    ///
    /// # Safety
    ///
    /// Same as for [`whole_lines`].
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn write_every_third(lanes: [__m512; 4], to: *mut f32) {
        let [l0, l1, l2, l3] = transpose_lanes(lanes);
        // SAFETY: guaranteed by the caller.
        unsafe {
            _mm512_storeu_ps(to, l0);
            _mm512_storeu_ps(to.add(3 * 16), l1);
            _mm512_storeu_ps(to.add(6 * 16), l2);
            _mm512_storeu_ps(to.add(9 * 16), l3);
        }
    }

    /// Like [`transpose`] for strips, with a line of f32 for each of the two bf16 of a word.
    ///
    /// # Safety
    ///
    /// Same as for [`transpose`], with space for twice the number of lines.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn transpose_widening<T: Operand>(rows: StripRows<T>, to: *mut f32) {
        let written = lanes(ROWS);
        for p in (0..rows.words).step_by(16) {
            // SAFETY: guaranteed by the caller.
            let columns = unsafe { words_of_rows(&rows, p) };
            for (line, column) in columns.into_iter().enumerate().take(rows.words - p) {
                for (depth, numbers) in widened_pairs(column).into_iter().enumerate() {
                    let to = to.wrapping_add((2 * (p + line) + depth) * ROWS);
                    // SAFETY: there are two lines for each word of the rows.
                    unsafe { _mm512_mask_storeu_ps(to, written, numbers) };
                }
            }
        }
    }

    /// Packs rows that are contiguous along their index into strips, depth by depth, so that reads
    /// are contiguous.
    ///
    /// # Safety
    ///
    /// AVX-512F, BW and VL; `rows.stride` is 1, and each row has the depths of its words.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn pack_columns<T: Operand>(rows: StripRows<T>, to: &mut [f32]) {
        let line_words = ROWS * T::strip_lines();
        let strip_words = rows.words * line_words;
        assert!(to.len() >= rows.rows.div_ceil(ROWS) * strip_words, "room");
        let written = lanes(ROWS);
        for p in 0..rows.words {
            for (strip, first) in (0..rows.rows).step_by(ROWS).enumerate() {
                let mask = lanes(ROWS.min(rows.rows - first));
                let number = |depth: usize| {
                    let depth = (p * T::DEPTHS + depth) * rows.depth_stride;
                    // SAFETY: elements of missing rows are masked out.
                    unsafe { widened_row(rows.first.wrapping_add(depth + first), mask) }
                };
                let to = to[strip * strip_words + p * line_words..].as_mut_ptr();
                // SAFETY: there is a line of the strip, or one per depth.
                unsafe {
                    if T::DEPTHS == 1 {
                        _mm512_mask_storeu_epi32(to.cast(), written, number(0));
                    } else if T::widens() {
                        _mm512_mask_storeu_epi32(to.cast(), written, number(0));
                        _mm512_mask_storeu_epi32(to.add(ROWS).cast(), written, number(1));
                    } else {
                        let low = _mm512_srli_epi32::<16>(number(0));
                        let pairs = _mm512_or_si512(low, number(1));
                        _mm512_mask_storeu_epi32(to.cast(), written, pairs);
                    }
                }
            }
        }
    }

    /// Loads up to 16 contiguous elements as f32 bits; masked-out lanes are zero.
    ///
    /// # Safety
    ///
    /// The masked elements exist, starting at `first`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[inline]
    unsafe fn widened_row<T: Operand>(first: *const T, mask: __mmask16) -> __m512i {
        // SAFETY: elements outside the mask are not accessed.
        unsafe {
            if T::DEPTHS == 1 {
                return _mm512_maskz_loadu_epi32(mask, first.cast());
            }
            let halves = _mm256_maskz_loadu_epi16(mask, first.cast());
            _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves))
        }
    }

    /// Prefetch distance in words of a row. The hardware prefetcher does not look far enough ahead
    /// if each row is in a page of its own.
    const WORDS_AHEAD: usize = 32;

    /// Loads words `p..p + 16` of up to 16 rows, one register per word; missing words and rows are
    /// zero.
    ///
    /// # Safety
    ///
    /// Same as for [`transpose`].
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn words_of_rows<T: Operand>(rows: &StripRows<T>, p: usize) -> [__m512; 16] {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match (rows.rows, rows.words - p >= 16) {
                // A row count known at compile time keeps the rows in registers.
                (ROWS, true) => words::<T, ROWS, true>(rows, p),
                (ROWS, false) => words::<T, ROWS, false>(rows, p),
                _ => words::<T, 16, false>(rows, p),
            }
        }
    }

    /// Loads at most `N` rows, with all 16 words if `WHOLE`.
    ///
    /// # Safety
    ///
    /// Same as for [`transpose`].
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn words<T: Operand, const N: usize, const WHOLE: bool>(
        rows: &StripRows<T>,
        p: usize,
    ) -> [__m512; 16] {
        let mask = if WHOLE { !0 } else { lanes(rows.words - p) };
        let mut block = [_mm512_setzero_ps(); 16];
        for (i, block) in block.iter_mut().enumerate().take(N) {
            if N == 16 && i >= rows.rows {
                break;
            }
            let row = rows.first.wrapping_add(i * rows.stride + p * T::DEPTHS);
            // SAFETY: words outside the mask are not accessed.
            *block = unsafe { _mm512_maskz_loadu_ps(mask, row.cast::<f32>()) };
            prefetch_l1::<1>(row.cast::<f32>().wrapping_add(WORDS_AHEAD));
        }
        transposed_16(block)
    }

    /// The low and the high bf16 of 16 words, as f32.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(in super::super) fn widened_pairs(words: __m512) -> [__m512; 2] {
        let words = _mm512_castps_si512(words);
        let high = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
        [
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)),
            _mm512_castsi512_ps(_mm512_and_si512(words, high)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::bf16;

    use super::{Operand, ROWS, StripRows, pack_all};

    /// Checks that every word of every row is where a tile reads it, for all instruction sets.
    fn compare<T: Operand>() {
        for (n, words, gap) in [
            (1, 1, 0),
            (12, 16, 0),
            (12, 53, 1),
            (31, 40, 3),
            (24, 15, 2),
        ] {
            let stride = words * T::DEPTHS + gap;
            let values: Vec<T> = (0..n * stride)
                .map(|i| T::narrow((i % 251) as f32))
                .collect();
            let rows = StripRows {
                first: values.as_ptr(),
                stride,
                depth_stride: 1,
                rows: n,
                words,
            };
            let mut packed = vec![f32::NAN; n.div_ceil(ROWS) * ROWS * words * T::strip_lines()];
            // SAFETY: every row has this number of words.
            unsafe { pack_all(rows, &mut packed) };
            for (row, p) in (0..n).flat_map(|row| (0..words).map(move |p| (row, p))) {
                let numbers = &values[row * stride + p * T::DEPTHS..][..T::DEPTHS];
                let line = (row / ROWS * words + p) * T::strip_lines();
                let element = |line: usize| packed[line * ROWS + row % ROWS];
                let expected: Vec<u32> = if T::widens() {
                    numbers.iter().map(|x| x.widen().to_bits()).collect()
                } else {
                    vec![T::pack_word(|i| numbers[i])]
                };
                let bits = (line..line + T::strip_lines()).map(|line| element(line).to_bits());
                assert!(bits.eq(expected), "row {row}, word {p} of {n} × {words}");
            }
        }
    }

    #[test]
    fn strips_hold_the_words_of_their_rows() {
        compare::<f32>();
        compare::<bf16>();
    }
}
