//! Tiles of f32, using the tiles of unpacked products.
//!
//! Products are summed in parts of the depth, each in registers, because long sums would lose
//! precision. Tiles with fewer parts are faster: parts of 192, which stay in the L1 cache while all
//! rows are processed, take 1.02 to 1.04 times as long as parts of 768, because panel lines arrive
//! as fast from the L2 cache.

use std::ops::Range;

use super::layout::PanelWords;
use super::panels::{COLUMNS, HALF};
use super::tile::{NextLines, ROWS, TileJob, TileOutput};
use super::transposed_gemm::{PackedLeft, TOKENS_AHEAD, TokenRows};
use crate::cpu::isa::Isa;
use crate::cpu::scratch::with_scratch;
use crate::cpu::tile::{self, Portable, Tile};
#[cfg(target_arch = "x86_64")]
use crate::cpu::{tile_avx2::Avx2, tile_avx512::Avx512};

/// Maximum depths that are summed before the sum is added to the others.
const DEPTH: usize = 768;

/// Calls a function with this CPU's tile type for the given rows and columns.
macro_rules! with_tile {
    ([$rows:expr, $columns:expr], $function:ident($($argument:expr),*)) => {
        match Isa::detect() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if $columns <= 16 => $function::<Avx512<1>>($($argument),*),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => $function::<Avx512<2>>($($argument),*),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 if $rows <= Avx2::<4>::ROWS && $columns > 16 => {
                $function::<Avx2<4>>($($argument),*)
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => $function::<Avx2<2>>($($argument),*),
            Isa::Portable => {
                let _ = ($rows, $columns);
                $function::<Portable>($($argument),*)
            }
        }
    };
}

/// Whether tiles multiply whole lines of a panel.
pub(super) fn multiplies_lines() -> bool {
    with_tile!([ROWS, COLUMNS], has_lines())
}

/// True with AVX2, as measured: its tiles would read only half of each 12-row line of a strip. See
/// [`Operand::reads_in_place`](super::operand::Operand::reads_in_place).
pub(super) fn reads_in_place() -> bool {
    #[cfg(target_arch = "x86_64")]
    return Isa::detect() == Isa::Avx2;
    #[cfg(not(target_arch = "x86_64"))]
    false
}

fn has_lines<T: Tile>() -> bool {
    T::COLUMNS == COLUMNS
}

/// # Safety
///
/// Same as for [`super::operand::Operand::run_tiles`].
pub(super) unsafe fn run(jobs: &[TileJob<f32>]) {
    let [rows, columns] = jobs.first().map_or([0; 2], |job| [job.rows, job.columns]);
    with_scratch(jobs.len() * ROWS * COLUMNS, |sums| {
        // SAFETY: the instruction set was detected; the rest is guaranteed by the caller.
        unsafe { with_tile!([rows, columns], sum(jobs, sums)) }
    });
}

/// Part of the depth of the products of some tiles.
#[derive(Debug, Clone)]
struct Part {
    term: usize,
    depths: Range<usize>,
    /// Whether sums from earlier parts exist.
    adds: bool,
    /// Whether this is the last part.
    ends: bool,
}

/// # Safety
///
/// Same as for [`run`]; every job has its sums, and the CPU has the instructions of `T`.
unsafe fn sum<T: Tile>(jobs: &[TileJob<f32>], sums: &mut [f32]) {
    let Some(first) = jobs.first() else { return };
    let tiles = jobs.iter().map(|job| job.rows.div_ceil(T::ROWS)).sum();
    // All lines of a tile's columns are used (each part by all rows) before other columns. The
    // panel stores them in this order, half after half.
    for column in (0..first.columns).step_by(T::COLUMNS) {
        let terms = first.products().iter().enumerate();
        let mut parts =
            terms.flat_map(|(i, term)| parts(term.words).map(move |depths| (i, depths)));
        // A sum without products is one part of depth zero.
        let mut next = Some(parts.next().unwrap_or((0, 0..0)));
        let mut adds = false;
        while let Some((term, depths)) = next {
            next = parts.next();
            let part = Part {
                term,
                depths,
                adds,
                ends: next.is_none(),
            };
            let mut next = NextLines::new(0, tiles);
            let sums = sums.chunks_exact_mut(ROWS * COLUMNS);
            for (job, sums) in jobs.iter().zip(sums) {
                // SAFETY: guaranteed by the caller.
                unsafe { run_part::<T>(job, &part, sums, column, &mut next) };
            }
            adds = true;
        }
    }
}

/// Splits `0..words` into parts of at most [`DEPTH`], all of the same size except the last.
fn parts(words: usize) -> impl Iterator<Item = Range<usize>> {
    let step = words.div_ceil(words.div_ceil(DEPTH).max(1)).max(1);
    let starts = (0..words).step_by(step);
    starts.map(move |start| start..(start + step).min(words))
}

/// Adds part of a product to the sums of a tile's columns starting at `column`; the first part
/// initialises the sums, the last one stores them.
///
/// # Safety
///
/// Same as for [`sum`].
unsafe fn run_part<T: Tile>(
    job: &TileJob<f32>,
    part: &Part,
    sums: &mut [f32],
    column: usize,
    next: &mut NextLines,
) {
    let TileOutput::F32(to) = job.output else {
        unreachable!("f32 products have f32 outputs");
    };
    let term = &job.terms[part.term];
    let null = std::ptr::null();
    // Rows are split evenly, because a tile with few rows stalls on its own sums.
    let step = job.rows.div_ceil(job.rows.div_ceil(T::ROWS));
    // A plain loop: an iterator would compute its length with a division between two tiles.
    let mut row = 0;
    while row < job.rows {
        let a_offset = row * term.row_stride + part.depths.start * term.word_stride;
        let sums = sums[row * COLUMNS + column..].as_mut_ptr();
        let load_lanes = |from: *const f32, offset: usize| {
            if part.ends && !from.is_null() {
                from.wrapping_add(offset + column)
            } else {
                null
            }
        };
        let (c, c_row_stride) = if part.ends {
            (
                to.wrapping_add(row * job.output_stride + column),
                job.output_stride,
            )
        } else {
            (sums, COLUMNS)
        };
        let lines = term
            .b
            .wrapping_add(term.layout.offset(part.depths.start, column));
        let tile = tile::TileJob {
            a: term.a.wrapping_add(a_offset),
            a_row_stride: term.row_stride,
            a_depth_stride: term.word_stride,
            b: lines.cast(),
            b_line_stride: term.layout.line,
            b_half_stride: term.layout.half,
            sums: if part.adds { sums } else { null },
            sums_row_stride: COLUMNS,
            bias: load_lanes(job.bias, 0),
            residual: load_lanes(job.residual, row * job.residual_stride),
            residual_row_stride: job.residual_stride,
            c,
            c_row_stride,
            c_is_far: part.ends,
            next: next.share(
                PanelWords {
                    words: lines,
                    layout: term.layout,
                },
                part.depths.len(),
                T::COLUMNS == COLUMNS,
            ),
            rows: (job.rows - row).min(step),
            columns: if part.ends {
                (job.columns - column).min(T::COLUMNS)
            } else {
                T::COLUMNS
            },
            depth: part.depths.len(),
        };
        // SAFETY: `COLUMNS` is a multiple of the tile's columns, so the tile stays within the panel
        // and the sums; the rest is guaranteed by the caller.
        unsafe { T::run(&tile) };
        next.advance();
        row += step;
    }
}

/// # Safety
///
/// Same as for [`super::operand::Operand::run_steps`].
pub(super) unsafe fn run_steps(left: PackedLeft<'_>, x: TokenRows<f32>, sums: &mut [f32]) {
    // SAFETY: the instruction set was detected; the rest is guaranteed by the caller.
    unsafe { with_tile!([left.rank, COLUMNS], steps(left, x, sums)) }
}

/// # Safety
///
/// Same as for [`run_steps`], and the CPU has the instructions of `T`.
unsafe fn steps<T: Tile>(
    PackedLeft { words: left, rank }: PackedLeft<'_>,
    TokenRows { first: x, stride }: TokenRows<f32>,
    sums: &mut [f32],
) {
    assert_eq!(sums.len(), rank * COLUMNS, "each row needs its sums");
    let tokens = left.len() / rank;
    let step = DEPTH;
    let most = T::ROWS.min(ROWS);
    let rows = rank.div_ceil(rank.div_ceil(most));
    for start in (0..tokens).step_by(step) {
        for row in (0..rank).step_by(rows) {
            for column in (0..COLUMNS).step_by(T::COLUMNS) {
                let sums = sums[row * COLUMNS + column..].as_mut_ptr();
                let b = x.wrapping_add(start * stride + column);
                let tile = tile::TileJob {
                    a: left[start * rank + row..].as_ptr().cast(),
                    a_row_stride: 1,
                    a_depth_stride: rank,
                    b,
                    b_line_stride: stride,
                    b_half_stride: HALF,
                    sums,
                    sums_row_stride: COLUMNS,
                    bias: std::ptr::null(),
                    residual: std::ptr::null(),
                    residual_row_stride: 0,
                    c: sums,
                    c_row_stride: COLUMNS,
                    c_is_far: false,
                    next: (
                        b.wrapping_add(TOKENS_AHEAD * stride).cast(),
                        size_of::<f32>() * stride,
                    ),
                    rows: (rank - row).min(rows),
                    columns: T::COLUMNS,
                    depth: step.min(tokens - start),
                };
                // SAFETY: rows of x have 32 elements, and `left` has a word of each row for every
                // token.
                unsafe { T::run(&tile) };
            }
        }
    }
}
