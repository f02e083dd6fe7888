//! Tiles of bf16 for CPUs that have AVX2 and multiply no pairs: up to 6 rows by 16
//! columns, or 2 by 32.
//!
//! A line's pairs are widened when they are loaded, 4 instructions for 24 multiply-adds of registers;
//! strips hold f32 already. So a product takes as long as one of f32, and reads half as much of W,
//! which is what counts where W comes from memory.

use std::arch::x86_64::{
    __m256, __m256i, _mm256_add_ps, _mm256_broadcast_ss, _mm256_fmadd_ps, _mm256_loadu_si256,
    _mm256_set1_epi32, _mm256_setzero_ps, _mm256_setzero_si256,
};

use burn::tensor::bf16;

use super::layout::PanelWords;
use super::panels::COLUMNS;
use super::tile::{NextLines, ROWS, TileJob, TileOutput};
use super::tile_bf16::{in_parts, is_widened};
use super::transposed_gemm::{PackedLeft, TOKENS_AHEAD, TokenRows};
use crate::cpu::lanes_avx2::{LANES, load, lower, store, upper};
use crate::cpu::number::Number;
use crate::cpu::prefetch::{ask_to_read, ask_to_read_later};

/// Most pairs of depths that are summed in registers. Parts that stay in the first level of cache while
/// all rows pass by take 1.06 times as long: lines come as fast from the second, and a tile has ends.
const PART: usize = 384;
/// Columns of a tile of many rows, and of half a line of a panel.
const WIDTH: usize = 2 * LANES;
/// Rows of one.
const TILE_ROWS: usize = 6;
/// Rows up to which a tile has all columns of a panel: fewer sums would wait for each other.
const FEW_ROWS: usize = 2;

/// # Safety
///
/// As for [`Operand::run_tiles`](super::operand::Operand::run_tiles), with AVX2 and FMA.
pub(crate) unsafe fn run_tiles(jobs: &[TileJob<bf16>]) {
    let Some(first) = jobs.first() else { return };
    let width = if first.rows <= FEW_ROWS && first.columns > WIDTH {
        COLUMNS
    } else {
        WIDTH
    };
    // SAFETY: as the caller promises; each arm passes how rows lie.
    unsafe {
        in_parts(jobs, PART, width, |job, column, place| {
            match (is_widened(job), width == COLUMNS) {
                (true, true) => rows::<4, true>(job, column, place),
                (true, false) => rows::<2, true>(job, column, place),
                (false, true) => rows::<4, false>(job, column, place),
                (false, false) => rows::<2, false>(job, column, place),
            }
        });
    }
}

/// All rows of a tile of the packed product, shared evenly between tiles of registers.
///
/// # Safety
///
/// As for [`tile`].
unsafe fn rows<const V: usize, const WIDENED: bool>(
    job: &TileJob<bf16>,
    column: usize,
    [number, of]: [usize; 2],
) {
    let tiles = job.rows.div_ceil(TILE_ROWS);
    let step = job.rows.div_ceil(tiles);
    let mut next = NextLines::from(number * tiles, of * tiles);
    for row in (0..job.rows).step_by(step) {
        // SAFETY: as the caller promises; each arm passes the number of rows.
        unsafe {
            match step.min(job.rows - row) {
                1 => tile::<1, V, WIDENED>(job, row, column, next),
                2 => tile::<2, V, WIDENED>(job, row, column, next),
                3 => tile::<3, V, WIDENED>(job, row, column, next),
                4 => tile::<4, V, WIDENED>(job, row, column, next),
                5 => tile::<5, V, WIDENED>(job, row, column, next),
                _ => tile::<6, V, WIDENED>(job, row, column, next),
            }
        }
        next.advance();
    }
}

/// `MR` rows and `8 * V` columns from `(row, column)` on.
///
/// # Safety
///
/// As for [`run_tiles`]; the job has the rows and at least one of the columns, and strips of f32 where
/// `WIDENED` says so.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const MR: usize, const V: usize, const WIDENED: bool>(
    job: &TileJob<bf16>,
    row: usize,
    column: usize,
    next: NextLines,
) {
    let mut sums = [[_mm256_setzero_ps(); V]; MR];
    for term in job.products() {
        let lines = term.b.wrapping_add(term.layout.at(0, column));
        let mut b = lines;
        let mut a = term.a.wrapping_add(row * term.row_stride);
        let word_stride = if WIDENED { 4 * ROWS } else { term.word_stride };
        let (mut next, next_step) = next.share(
            PanelWords {
                words: lines,
                layout: term.layout,
            },
            term.words,
            V * LANES > WIDTH,
        );
        for _ in 0..term.words {
            // SAFETY: the panel has a line for each word, A's rows two elements, or two f32.
            unsafe {
                for half in 0..V * LANES / WIDTH {
                    let half = half * size_of::<u32>() * term.layout.half;
                    ask_to_read_later(next.wrapping_add(half));
                }
                next = next.wrapping_add(next_step);
                if WIDENED {
                    add_strip(
                        a.cast(),
                        PanelWords {
                            words: b,
                            layout: term.layout,
                        },
                        &mut sums,
                    );
                } else {
                    add_rows(
                        a,
                        term.row_stride,
                        PanelWords {
                            words: b,
                            layout: term.layout,
                        },
                        &mut sums,
                    );
                }
            }
            b = b.wrapping_add(term.layout.line);
            a = a.wrapping_add(word_stride);
        }
    }
    for (i, sum) in sums.into_iter().enumerate() {
        for (v, value) in sum.into_iter().enumerate() {
            // SAFETY: as the caller promises.
            unsafe { finish(job, row + i, column + LANES * v, value) };
        }
    }
}

/// Adds the products of a line of a panel and of two lines of a strip of f32.
///
/// # Safety
///
/// AVX2 and FMA, and numbers of every row and column.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn add_strip<const MR: usize, const V: usize>(
    a: *const f32,
    b: PanelWords,
    sums: &mut [[__m256; V]; MR],
) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut line = [_mm256_setzero_ps(); V];
        for (v, line) in line.iter_mut().enumerate() {
            *line = lower(words(b, v));
        }
        for (i, sum) in sums.iter_mut().enumerate() {
            let value = _mm256_broadcast_ss(&*a.add(i));
            for (sum, &line) in sum.iter_mut().zip(&line) {
                *sum = _mm256_fmadd_ps(value, line, *sum);
            }
        }
        for (v, line) in line.iter_mut().enumerate() {
            *line = upper(words(b, v));
        }
        for (i, sum) in sums.iter_mut().enumerate() {
            let value = _mm256_broadcast_ss(&*a.add(ROWS + i));
            for (sum, &line) in sum.iter_mut().zip(&line) {
                *sum = _mm256_fmadd_ps(value, line, *sum);
            }
        }
    }
}

/// Eight words of a panel's line. They are loaded again for their other halves, whatever the compiler
/// knows: sums take all registers but four.
///
/// # Safety
///
/// AVX2, and a panel's line.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn words(b: PanelWords, v: usize) -> __m256i {
    // SAFETY: as the caller promises; lines are aligned to cache lines.
    unsafe { place(b, v).read_volatile() }
}

/// Adds the products of a line of a panel and of pairs of rows where they lie.
///
/// # Safety
///
/// As for [`add_strip`].
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn add_rows<const MR: usize, const V: usize>(
    a: *const bf16,
    row_stride: usize,
    b: PanelWords,
    sums: &mut [[__m256; V]; MR],
) {
    // SAFETY: as the caller promises.
    unsafe {
        let words = line::<V>(b);
        for (i, sum) in sums.iter_mut().enumerate() {
            let pair = a.add(i * row_stride).cast::<i32>().read_unaligned();
            let pair = _mm256_set1_epi32(pair);
            let (first, second) = (lower(pair), upper(pair));
            for (sum, &words) in sum.iter_mut().zip(&words) {
                *sum = _mm256_fmadd_ps(first, lower(words), *sum);
                *sum = _mm256_fmadd_ps(second, upper(words), *sum);
            }
        }
    }
}

/// Rows of `Lᵀ X` whose sums are kept in registers.
const STEP_ROWS: usize = 4;

/// # Safety
///
/// As for [`Operand::run_steps`](super::operand::Operand::run_steps), with AVX2 and FMA.
pub(crate) unsafe fn run_steps(left: PackedLeft<'_>, x: TokenRows<bf16>, sums: &mut [f32]) {
    let rank = left.rank;
    assert_eq!(sums.len(), rank * COLUMNS, "sums of every row");
    for (row, sums) in (0..rank)
        .step_by(STEP_ROWS)
        .zip(sums.chunks_mut(STEP_ROWS * COLUMNS))
    {
        for column in (0..COLUMNS).step_by(2 * LANES) {
            let x = TokenRows {
                first: x.first.wrapping_add(column),
                ..x
            };
            let to = &mut sums[column..];
            // SAFETY: as the caller promises; each arm passes the number of rows.
            unsafe {
                match rank - row {
                    1 => steps::<1>(left, row, x, to),
                    2 => steps::<2>(left, row, x, to),
                    3 => steps::<3>(left, row, x, to),
                    _ => steps::<STEP_ROWS>(left, row, x, to),
                }
            }
        }
    }
}

/// `R` rows and 16 columns, added to rows of [`COLUMNS`].
///
/// # Safety
///
/// As for [`run_steps`].
#[target_feature(enable = "avx2,fma")]
unsafe fn steps<const R: usize>(
    left: PackedLeft<'_>,
    row: usize,
    TokenRows { first: x, stride }: TokenRows<bf16>,
    to: &mut [f32],
) {
    assert!(
        to.len() >= (R - 1) * COLUMNS + 2 * LANES,
        "sums of the rows"
    );
    let mut sums = [[_mm256_setzero_ps(); 2]; R];
    for (step, words) in left.words.chunks_exact(left.rank).enumerate() {
        let words = &words[row..row + R];
        let first = x.wrapping_add(2 * step * stride);
        let second = first.wrapping_add(stride);
        ask_to_read(first.wrapping_add(TOKENS_AHEAD * stride));
        ask_to_read(second.wrapping_add(TOKENS_AHEAD * stride));
        // SAFETY: two rows of numbers for each word.
        unsafe {
            let first = [load(first), load(first.add(LANES))];
            let second = [load(second), load(second.add(LANES))];
            for (sum, &word) in sums.iter_mut().zip(words) {
                let pair = _mm256_set1_epi32(word as i32);
                let (low, high) = (lower(pair), upper(pair));
                for v in 0..2 {
                    sum[v] = _mm256_fmadd_ps(low, first[v], sum[v]);
                    sum[v] = _mm256_fmadd_ps(high, second[v], sum[v]);
                }
            }
        }
    }
    for (sum, to) in sums.into_iter().zip(to.chunks_mut(COLUMNS)) {
        for (sum, to) in sum.into_iter().zip(to.chunks_exact_mut(LANES)) {
            // SAFETY: eight numbers.
            unsafe { store(to.as_mut_ptr(), _mm256_add_ps(load(to.as_ptr()), sum)) };
        }
    }
}

/// Words of a panel's line.
///
/// # Safety
///
/// AVX2, and `8 * V` words.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn line<const V: usize>(b: PanelWords) -> [__m256i; V] {
    let mut words = [_mm256_setzero_si256(); V];
    for (v, words) in words.iter_mut().enumerate() {
        // SAFETY: as the caller promises.
        *words = unsafe { _mm256_loadu_si256(place(b, v)) };
    }
    words
}

/// Where register `v` of a panel's line lies.
#[inline(always)]
fn place(PanelWords { words: b, layout }: PanelWords, v: usize) -> *const __m256i {
    let half = b.wrapping_add(v * LANES / WIDTH * layout.half);
    half.wrapping_add(v * LANES % WIDTH).cast()
}

/// Adds what is to be added to 8 columns of a row and writes them.
///
/// # Safety
///
/// As for [`tile`].
#[target_feature(enable = "avx2,fma")]
unsafe fn finish(job: &TileJob<bf16>, row: usize, column: usize, mut value: __m256) {
    let at = row * job.output_stride + column;
    let residual = job
        .residual
        .wrapping_add(row * job.residual_stride + column);
    let bias = job.bias.wrapping_add(column);
    let held = job.columns.saturating_sub(column).min(LANES);
    // SAFETY: a row has its columns wherever it is read or written.
    unsafe {
        if held == LANES {
            if !job.bias.is_null() {
                value = _mm256_add_ps(value, load(bias));
            }
            if !job.residual.is_null() {
                value = _mm256_add_ps(value, load(residual));
            }
            match job.output {
                TileOutput::F32(to) => store(to.wrapping_add(at), value),
                TileOutput::Bf16(to) => store(to.wrapping_add(at), value),
            }
            return;
        }
        let mut values = [0.0f32; LANES];
        store(values.as_mut_ptr(), value);
        for (i, &value) in values.iter().enumerate().take(held) {
            let mut value = value;
            if !job.bias.is_null() {
                value += *bias.add(i);
            }
            if !job.residual.is_null() {
                value += *residual.add(i);
            }
            match job.output {
                TileOutput::F32(to) => *to.add(at + i) = value,
                TileOutput::Bf16(to) => *to.add(at + i) = bf16::narrow(value),
            }
        }
    }
}
