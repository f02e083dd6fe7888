//! Products over tokens: `C = Lᵀ X` with a narrow L, for the gradients of LoRA factors.
//!
//! X is read in place; L is small and packed into words of one or two tokens, which are multiplied
//! at a time. Threads split the columns of C, never the tokens.

use rayon::prelude::*;

use super::operand::Operand;
use crate::cpu::isa::for_each_isa;
use crate::cpu::prefetch::prefetch_l1;
use crate::cpu::shared::Shared;
use crate::dropout::Dropout;

/// Columns per step.
const COLUMNS: usize = 32;
/// Prefetch distance in tokens: rows are too far apart for the hardware prefetcher.
pub(super) const TOKENS_AHEAD: usize = 24;
/// Tokens whose masked rows are stored at a time.
const MASKED_TOKENS: usize = 256;

/// Columns `first..first + width` of rows of `stride` elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Columns<'a, T> {
    pub(crate) values: &'a [T],
    pub(crate) stride: usize,
    pub(crate) first: usize,
    pub(crate) width: usize,
}

impl<T> Columns<'_, T> {
    fn tokens(&self) -> usize {
        self.values.len().checked_div(self.stride).unwrap_or(0)
    }
}

/// The left operand in words: for each of the `rank` columns, one word per [`Operand::DEPTHS`]
/// tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PackedLeft<'a> {
    pub(crate) words: &'a [u32],
    pub(crate) rank: usize,
}

/// Rows of tokens, `stride` elements apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenRows<T> {
    pub(crate) first: *const T,
    pub(crate) stride: usize,
}

/// Layout of C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// `[L's columns, X's columns]`.
    Rows,
    /// The transpose, `[X's columns, L's columns]`.
    Transposed,
}

/// Writes `Lᵀ dropout(X)` to `c`, which has the size of the result.
pub(crate) fn transposed_product<T: Operand>(
    left: Columns<'_, T>,
    x: Columns<'_, T>,
    dropout: Option<Dropout>,
    layout: Layout,
    c: &mut [f32],
) {
    assert_eq!(
        left.tokens(),
        x.tokens(),
        "the operands have different numbers of tokens"
    );
    assert_eq!(
        c.len(),
        left.width * x.width,
        "the output has the wrong size"
    );
    let packed = pack_words(left);
    let rank = left.width;
    let c = Shared::new(c);
    let tasks = x.width.div_ceil(COLUMNS);
    let step = tasks.div_ceil(4 * rayon::current_num_threads()).max(1);
    (0..tasks.div_ceil(step)).into_par_iter().for_each(|task| {
        let mut sums = vec![0.0f32; rank * COLUMNS];
        for block in task * step..((task + 1) * step).min(tasks) {
            let column = block * COLUMNS;
            let width = COLUMNS.min(x.width - column);
            sums.fill(0.0);
            columns(&packed, rank, x, dropout, column, &mut sums);
            for (i, sums) in sums.chunks_exact(COLUMNS).enumerate() {
                match layout {
                    // SAFETY: only this task writes these columns of C.
                    Layout::Rows => unsafe { c.slice(i * x.width + column, width) }
                        .copy_from_slice(&sums[..width]),
                    Layout::Transposed => {
                        for (j, &sum) in sums[..width].iter().enumerate() {
                            // SAFETY: as above.
                            let target = unsafe { c.slice((column + j) * rank + i, 1) };
                            target[0] = sum;
                        }
                    }
                }
            }
        }
    });
}

/// Packs L into words of tokens: `[tokens / DEPTHS, width]`.
fn pack_words<T: Operand>(left: Columns<'_, T>) -> Vec<u32> {
    let tokens = left.tokens();
    let mut words = Vec::with_capacity(tokens.div_ceil(T::DEPTHS) * left.width);
    for token in (0..tokens).step_by(T::DEPTHS) {
        for column in left.first..left.first + left.width {
            words.push(T::pack_word(|i| match token + i {
                token if token < tokens => left.values[token * left.stride + column],
                _ => T::ZERO,
            }));
        }
    }
    words
}

/// Adds 32 columns starting at `column` to `sums`, `[rank, 32]`.
fn columns<T: Operand>(
    packed: &[u32],
    rank: usize,
    x: Columns<'_, T>,
    dropout: Option<Dropout>,
    column: usize,
    sums: &mut [f32],
) {
    let tokens = x.tokens();
    let width = COLUMNS.min(x.width - column);
    let unpadded = dropout.is_none() && width == COLUMNS;
    if unpadded && tokens.is_multiple_of(T::DEPTHS) {
        let first = x.first + column;
        // SAFETY: each token's row has the columns `first..first + 32`.
        unsafe {
            T::run_steps(
                PackedLeft {
                    words: packed,
                    rank,
                },
                TokenRows {
                    first: x.values[first..].as_ptr(),
                    stride: x.stride,
                },
                sums,
            )
        };
        return;
    }
    let mut copy = [T::ZERO; MASKED_TOKENS * COLUMNS];
    for start in (0..tokens).step_by(MASKED_TOKENS) {
        let end = (start + MASKED_TOKENS).min(tokens);
        for (token, to) in (start..end).zip(copy.chunks_exact_mut(COLUMNS)) {
            let from = &x.values[token * x.stride + x.first + column..][..width];
            let next_row = from.as_ptr().wrapping_add(TOKENS_AHEAD * x.stride);
            for line in (0..size_of_val(from)).step_by(64) {
                prefetch_l1(next_row.wrapping_byte_add(line));
            }
            match dropout {
                Some(dropout) => dropout.keep(token, column, from, &mut to[..width]),
                None => to[..width].copy_from_slice(from),
            }
        }
        let whole = (end - start).next_multiple_of(T::DEPTHS);
        copy[(end - start) * COLUMNS..whole * COLUMNS].fill(T::ZERO);
        let words = &packed[start / T::DEPTHS * rank..end.div_ceil(T::DEPTHS) * rank];
        // SAFETY: the copy has a row of 32 for each token, and padding rows up to whole words.
        unsafe {
            T::run_steps(
                PackedLeft { words, rank },
                TokenRows {
                    first: copy.as_ptr(),
                    stride: COLUMNS,
                },
                sums,
            )
        };
    }
}

for_each_isa! {
    /// Computes the steps in portable loops, with the contract of [`Operand::run_steps`].
    pub(super) fn portable[T: Operand](left: PackedLeft<'_>, x: TokenRows<T>, sums: &mut [f32]) {
        for (token, words) in left.words.chunks_exact(left.rank).enumerate() {
            for (sums, &word) in sums.chunks_exact_mut(COLUMNS).zip(words) {
                let row = x.first.wrapping_add(T::DEPTHS * token * x.stride);
                for (column, sum) in sums.iter_mut().enumerate() {
                    let mut products = 0.0;
                    for i in 0..T::DEPTHS {
                        // SAFETY: there are rows of 32 for each word, guaranteed by the caller.
                        let x = unsafe { *row.add(i * x.stride + column) };
                        products += T::unpack_word(word, i).widen() * x.widen();
                    }
                    *sum += products;
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    //! Computes the steps with bf16 pair instructions.

    use std::arch::x86_64::{
        _mm512_add_ps, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512,
        _mm512_permutex2var_ps, _mm512_set_epi32, _mm512_set1_epi32, _mm512_setzero_ps,
        _mm512_storeu_ps, _mm512_unpackhi_epi16, _mm512_unpacklo_epi16,
    };

    use burn::tensor::bf16;

    use super::super::tile_bf16::pairs;
    use super::{COLUMNS, PackedLeft, TokenRows};

    /// Maximum rows of C that fit in registers together with a step's columns.
    const ROWS: usize = 12;

    /// # Safety
    ///
    /// Same as for [`super::Operand::run_steps`], and AVX-512 BF16.
    pub(in super::super) unsafe fn run(left: PackedLeft<'_>, x: TokenRows<bf16>, sums: &mut [f32]) {
        let rank = left.rank;
        for first in (0..rank).step_by(ROWS) {
            let rows = ROWS.min(rank - first);
            let sums = &mut sums[first * COLUMNS..(first + rows) * COLUMNS];
            // SAFETY: guaranteed by the caller.
            unsafe { with_rows(rows, left, first, x, sums) };
        }
    }

    /// # Safety
    ///
    /// Same as for [`run`], with `sums` for `rows` rows.
    unsafe fn with_rows(
        rows: usize,
        left: PackedLeft<'_>,
        first: usize,
        right: TokenRows<bf16>,
        sums: &mut [f32],
    ) {
        assert_eq!(sums.len(), rows * COLUMNS, "each row needs its sums");
        // SAFETY: guaranteed by the caller.
        unsafe {
            match rows {
                1 => tile::<1>(left, first, right, sums),
                2 => tile::<2>(left, first, right, sums),
                3 => tile::<3>(left, first, right, sums),
                4 => tile::<4>(left, first, right, sums),
                5 => tile::<5>(left, first, right, sums),
                6 => tile::<6>(left, first, right, sums),
                7 => tile::<7>(left, first, right, sums),
                8 => tile::<8>(left, first, right, sums),
                9 => tile::<9>(left, first, right, sums),
                10 => tile::<10>(left, first, right, sums),
                11 => tile::<11>(left, first, right, sums),
                _ => tile::<12>(left, first, right, sums),
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bf16,avx512bw,avx512vl")]
    unsafe fn tile<const R: usize>(
        left: PackedLeft<'_>,
        first: usize,
        TokenRows { first: x, stride }: TokenRows<bf16>,
        sums: &mut [f32],
    ) {
        let mut sums_here = [[_mm512_setzero_ps(); 2]; R];
        let mut row = x;
        for words in left.words.chunks_exact(left.rank) {
            let words = &words[first..first + R];
            // SAFETY: there are two rows of 32 elements for each pair.
            let (low, high) = unsafe {
                (
                    _mm512_loadu_si512(row.cast()),
                    _mm512_loadu_si512(row.wrapping_add(stride).cast()),
                )
            };
            // In each 128-bit lane: columns 0..4 of 8, then 4..8, as pairs of tokens.
            let (near, far) = (
                pairs(_mm512_unpacklo_epi16(low, high)),
                pairs(_mm512_unpackhi_epi16(low, high)),
            );
            for (sum, &word) in sums_here.iter_mut().zip(words) {
                let word = pairs(_mm512_set1_epi32(word as i32));
                sum[0] = _mm512_dpbf16_ps(sum[0], word, near);
                sum[1] = _mm512_dpbf16_ps(sum[1], word, far);
            }
            row = row.wrapping_add(2 * stride);
        }
        // Interleaves the quads of the two registers.
        let first_half = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
        let second_half =
            _mm512_set_epi32(31, 30, 29, 28, 15, 14, 13, 12, 27, 26, 25, 24, 11, 10, 9, 8);
        for ([near, far], sums) in sums_here.into_iter().zip(sums.chunks_exact_mut(COLUMNS)) {
            for (order, sums) in [first_half, second_half]
                .into_iter()
                .zip(sums.chunks_exact_mut(16))
            {
                let values = _mm512_permutex2var_ps(near, order, far);
                // SAFETY: the pointer has 16 floats.
                unsafe {
                    let earlier = _mm512_loadu_ps(sums.as_ptr());
                    _mm512_storeu_ps(sums.as_mut_ptr(), _mm512_add_ps(earlier, values));
                }
            }
        }
    }
}
