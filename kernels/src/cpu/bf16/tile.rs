//! What a bf16 product is cut into: tiles of the result that fit the registers of one core.

use burn::tensor::bf16;

use super::panels::COLUMNS;
use crate::cpu::isa::for_each_isa;
use crate::cpu::number::Number;

/// Most rows of a tile.
pub(crate) const ROWS: usize = 12;

/// One product of the sum that a tile holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileTerm {
    /// Element `(0, 0)` of A at the first pair of `b`; its rows hold the depth in order.
    pub(crate) a: *const bf16,
    /// Elements from one row of A to the next.
    pub(crate) a_stride: usize,
    /// `pairs` lines of [`COLUMNS`] words.
    pub(crate) b: *const u32,
    pub(crate) pairs: usize,
}

/// Where a tile goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TileOutput {
    F32(*mut f32),
    Bf16(*mut bf16),
}

/// One tile: `c[rows, columns] = residual + bias + Σ a b`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileJob<'a> {
    pub(crate) terms: &'a [TileTerm],
    /// At least 1, at most [`ROWS`].
    pub(crate) rows: usize,
    /// At least 1, at most [`COLUMNS`].
    pub(crate) columns: usize,
    /// One number a column, or null.
    pub(crate) bias: *const f32,
    /// Element `(0, 0)` of what is added, `output_stride` a row, or null.
    pub(crate) residual: *const f32,
    pub(crate) output: TileOutput,
    pub(crate) output_stride: usize,
}

/// Runs a tile with the best instructions of this CPU.
///
/// # Safety
///
/// Every pointer is valid for the shape of the job, and nothing else touches the output meanwhile.
/// The residual may be the output itself.
pub(crate) unsafe fn run(job: &TileJob<'_>) {
    #[cfg(target_arch = "x86_64")]
    if super::tile_avx512::is_available() {
        // SAFETY: the instructions are there, and the caller vouches for the pointers.
        unsafe { super::tile_avx512::run(job) };
        return;
    }
    portable(job);
}

for_each_isa! {
    /// The same in plain loops. The pointers are as [`run`] demands.
    pub(crate) fn portable(job: &TileJob<'_>) {
        let mut sums = [[0.0f32; COLUMNS]; ROWS];
        for term in job.terms {
            for p in 0..term.pairs {
                // SAFETY: `pairs` lines of the panel.
                let line = unsafe { &*term.b.add(p * COLUMNS).cast::<[u32; COLUMNS]>() };
                for (i, sum) in sums.iter_mut().enumerate().take(job.rows) {
                    // SAFETY: rows of A hold both depths of each pair.
                    let [low, high] = unsafe {
                        let a = term.a.add(i * term.a_stride + 2 * p);
                        [(*a).widen(), (*a.add(1)).widen()]
                    };
                    for (sum, &word) in sum.iter_mut().zip(line) {
                        let (b_low, b_high) = (word << 16, word & 0xffff_0000);
                        *sum += low * f32::from_bits(b_low) + high * f32::from_bits(b_high);
                    }
                }
            }
        }
        for (i, sum) in sums.iter().enumerate().take(job.rows) {
            for (j, &value) in sum.iter().enumerate().take(job.columns) {
                let at = i * job.output_stride + j;
                // SAFETY: within the output, the residual and the bias.
                unsafe {
                    let mut value = value;
                    if !job.bias.is_null() {
                        value += *job.bias.add(j);
                    }
                    if !job.residual.is_null() {
                        value += *job.residual.add(at);
                    }
                    match job.output {
                        TileOutput::F32(to) => *to.add(at) = value,
                        TileOutput::Bf16(to) => *to.add(at) = bf16::narrow(value),
                    }
                }
            }
        }
    }
}
