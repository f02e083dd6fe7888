//! The numbers that packed products multiply: what a word holds, and who multiplies it.

use burn::tensor::bf16;

use super::layout::{PanelWords, PanelWordsMut};
use super::tile::{self, TileJob, TileOutput};
use super::transposed_gemm::{PackedLeft, TokenRows};
#[cfg(target_arch = "x86_64")]
use super::{strips_avx2, tile_bf16, tile_bf16_avx2};
use super::{tile_f32, transpose, transposed_gemm};
use crate::cpu::isa::{Isa, has_pairs, widens_pairs};
use crate::cpu::number::Number;

/// A number of a packed product.
pub(crate) trait Operand: Number + PartialEq {
    /// Depths in one word of a panel.
    const DEPTHS: usize;
    const ZERO: Self;

    /// The word of the numbers at its depths, the first one in the low bits.
    fn word(at: impl Fn(usize) -> Self) -> u32;

    /// The number at depth `i` of a word.
    fn of_word(word: u32, i: usize) -> Self;

    /// Whether strips hold these numbers as f32, one line for each depth of a word.
    fn widens() -> bool {
        false
    }

    /// Whether tiles multiply whole lines of a panel, not half of them.
    fn multiplies_lines() -> bool;

    /// Whether rows are multiplied as fast where they lie as from strips: where a tile has so few that
    /// their lines fit the sets of a first level of cache, whatever their stride.
    fn reads_in_place() -> bool {
        false
    }

    /// Lines of a strip for one word of its rows.
    fn strip_lines() -> usize {
        if Self::widens() { Self::DEPTHS } else { 1 }
    }

    /// Where a tile of such numbers goes.
    fn output(to: *mut Self) -> TileOutput;

    /// Runs tiles of one panel, with as many products of the same depth each, with the best
    /// instructions of this CPU.
    ///
    /// # Safety
    ///
    /// Every pointer is valid for the shape of its job, and nothing else touches the output
    /// meanwhile. The residual may be the output itself.
    unsafe fn run_tiles(jobs: &[TileJob<Self>]);

    /// Transposes a block of 32 depths by 32 columns.
    ///
    /// # Safety
    ///
    /// `from` and `to` have `32 / DEPTHS` lines of 32 words, and do not overlap.
    unsafe fn transpose_block(from: PanelWords, to: PanelWordsMut) {
        // SAFETY: detected; the lines are the caller's promise.
        unsafe {
            match Isa::detect() {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => transpose::avx512::<Self>(from, to),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => strips_avx2::transpose_block::<Self>(from, to),
                Isa::Portable => transpose::portable::<Self>(from, to),
            }
        }
    }

    /// `sums += Lᵀ X` for 32 columns of X, `[rank, 32]`; `left` has a word of each of the `rank`
    /// columns of L for every [`Self::DEPTHS`] tokens.
    ///
    /// # Safety
    ///
    /// From `x` on lie [`Self::DEPTHS`] rows, `stride` apart, for each line of words, with 32
    /// numbers each.
    unsafe fn run_steps(left: PackedLeft<'_>, x: TokenRows<Self>, sums: &mut [f32]);
}

impl Operand for f32 {
    const DEPTHS: usize = 1;
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn word(at: impl Fn(usize) -> Self) -> u32 {
        at(0).to_bits()
    }

    #[inline(always)]
    fn of_word(word: u32, _: usize) -> Self {
        Self::from_bits(word)
    }

    fn output(to: *mut Self) -> TileOutput {
        TileOutput::F32(to)
    }

    fn multiplies_lines() -> bool {
        tile_f32::multiplies_lines()
    }

    fn reads_in_place() -> bool {
        tile_f32::reads_in_place()
    }

    unsafe fn run_tiles(jobs: &[TileJob<Self>]) {
        // SAFETY: the same contract.
        unsafe { tile_f32::run(jobs) }
    }

    unsafe fn run_steps(left: PackedLeft<'_>, x: TokenRows<Self>, sums: &mut [f32]) {
        // SAFETY: the same contract.
        unsafe { tile_f32::run_steps(left, x, sums) }
    }
}

impl Operand for bf16 {
    const DEPTHS: usize = 2;
    const ZERO: Self = Self::ZERO;

    #[inline(always)]
    fn word(at: impl Fn(usize) -> Self) -> u32 {
        u32::from(at(0).to_bits()) | u32::from(at(1).to_bits()) << 16
    }

    #[inline(always)]
    fn of_word(word: u32, i: usize) -> Self {
        Self::from_bits((word >> (16 * i)) as u16)
    }

    fn widens() -> bool {
        widens_pairs()
    }

    fn multiplies_lines() -> bool {
        has_pairs()
    }

    fn output(to: *mut Self) -> TileOutput {
        TileOutput::Bf16(to)
    }

    unsafe fn run_tiles(jobs: &[TileJob<Self>]) {
        // SAFETY: the instructions are there, and the caller vouches for the pointers.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            if has_pairs() {
                return tile_bf16::run_tiles(jobs);
            }
            if Isa::detect() >= Isa::Avx2 {
                return tile_bf16_avx2::run_tiles(jobs);
            }
        }
        jobs.iter().for_each(tile::portable);
    }

    unsafe fn run_steps(left: PackedLeft<'_>, x: TokenRows<Self>, sums: &mut [f32]) {
        // SAFETY: the instructions are there; rows and words as the caller promises.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            if has_pairs() {
                return transposed_gemm::avx512::run(left, x, sums);
            }
            if Isa::detect() >= Isa::Avx2 {
                return tile_bf16_avx2::run_steps(left, x, sums);
            }
        }
        transposed_gemm::portable(left, x, sums);
    }
}
