//! Element types of packed products: the contents of a word, and the code that multiplies it.

use burn::tensor::bf16;

use super::layout::{PanelWords, PanelWordsMut};
use super::tile::{self, TileJob, TileOutput};
use super::transposed_gemm::{PackedLeft, TokenRows};
#[cfg(target_arch = "x86_64")]
use super::{strips_avx2, tile_bf16, tile_bf16_avx2};
use super::{tile_f32, transpose, transposed_gemm};
use crate::cpu::isa::{Isa, has_pairs, widens_pairs};
use crate::cpu::number::Number;

/// Element type of a packed product.
pub(crate) trait Operand: Number + PartialEq {
    /// Depths per word of a panel.
    const DEPTHS: usize;
    const ZERO: Self;

    /// Packs the elements of a word's depths; the first one is in the low bits.
    fn pack_word(element: impl Fn(usize) -> Self) -> u32;

    /// The element at depth `i` of a word.
    fn unpack_word(word: u32, i: usize) -> Self;

    /// Whether strips store these elements as f32, with one line per depth of a word.
    fn widens() -> bool {
        false
    }

    /// Whether tiles multiply whole lines of a panel instead of half lines.
    fn multiplies_lines() -> bool;

    /// Whether tiles read unpacked rows as fast as strips. This is the case if a tile has so few
    /// rows that their lines fit in the L1 cache sets at any stride.
    fn reads_in_place() -> bool {
        false
    }

    /// Lines of a strip per word of its rows.
    fn strip_lines() -> usize {
        if Self::widens() { Self::DEPTHS } else { 1 }
    }

    /// The output of a tile of such elements.
    fn output(to: *mut Self) -> TileOutput;

    /// Runs the tiles of one panel with the best instructions of this CPU. All have the same number
    /// of products, of the same depths.
    ///
    /// # Safety
    ///
    /// Every pointer is valid for the shape of its job, and nothing else accesses the output during
    /// the call. The residual may be the output itself.
    unsafe fn run_tiles(jobs: &[TileJob<Self>]);

    /// Transposes a block of 32 depths by 32 columns.
    ///
    /// # Safety
    ///
    /// `from` and `to` have `32 / DEPTHS` lines of 32 words, and do not overlap.
    unsafe fn transpose_block(from: PanelWords, to: PanelWordsMut) {
        // SAFETY: the CPU feature was detected; the lines are guaranteed by the caller.
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

    /// `sums += Lᵀ X` for 32 columns of X, `[rank, 32]`; `left` has one word per [`Self::DEPTHS`]
    /// tokens for each of the `rank` columns of L.
    ///
    /// # Safety
    ///
    /// Starting at `x` there are [`Self::DEPTHS`] rows of 32 elements, `stride` apart, for each
    /// line of words.
    unsafe fn run_steps(left: PackedLeft<'_>, x: TokenRows<Self>, sums: &mut [f32]);
}

impl Operand for f32 {
    const DEPTHS: usize = 1;
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn pack_word(element: impl Fn(usize) -> Self) -> u32 {
        element(0).to_bits()
    }

    #[inline(always)]
    fn unpack_word(word: u32, _: usize) -> Self {
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
        // SAFETY: same contract.
        unsafe { tile_f32::run(jobs) }
    }

    unsafe fn run_steps(left: PackedLeft<'_>, x: TokenRows<Self>, sums: &mut [f32]) {
        // SAFETY: same contract.
        unsafe { tile_f32::run_steps(left, x, sums) }
    }
}

impl Operand for bf16 {
    const DEPTHS: usize = 2;
    const ZERO: Self = Self::ZERO;

    #[inline(always)]
    fn pack_word(element: impl Fn(usize) -> Self) -> u32 {
        u32::from(element(0).to_bits()) | u32::from(element(1).to_bits()) << 16
    }

    #[inline(always)]
    fn unpack_word(word: u32, i: usize) -> Self {
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
        // SAFETY: the CPU has the instructions, and the caller guarantees the pointers.
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
        // SAFETY: the CPU has the instructions; rows and words are guaranteed by the caller.
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
