//! Tiles of bf16 for CPUs with AVX2 but without bf16 pair instructions: up to 6 rows × 16 columns,
//! or 2 × 32.
//!
//! The pairs of a panel line are widened on load, with 4 instructions per 24 register
//! multiply-adds; strips already hold f32. A product therefore takes as long as in f32 but reads
//! half the bytes of W, which matters when W comes from memory.

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
use crate::cpu::prefetch::{prefetch_l1, prefetch_l2};

/// Maximum pairs of depths that are summed in registers. Smaller parts that stay in the L1 cache
/// while all rows are processed take 1.06 times as long: lines arrive as fast from the L2 cache,
/// and each part has a fixed overhead.
const PART: usize = 384;
/// Columns of a tile with many rows: half a line of a panel.
const WIDTH: usize = 2 * LANES;
/// Rows of a tile with many rows.
const TILE_ROWS: usize = 6;
/// Up to this number of rows, a tile has all columns of a panel, because fewer accumulators would
/// stall.
const FEW_ROWS: usize = 2;

/// # Safety
///
/// Same as for [`Operand::run_tiles`](super::operand::Operand::run_tiles), with AVX2 and FMA.
pub(crate) unsafe fn run_tiles(jobs: &[TileJob<bf16>]) {
    let Some(first) = jobs.first() else { return };
    let width = if first.rows <= FEW_ROWS && first.columns > WIDTH {
        COLUMNS
    } else {
        WIDTH
    };
    // SAFETY: guaranteed by the caller; each arm passes the row layout.
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

/// Computes all rows of a tile of the packed product, split evenly between register tiles.
///
/// # Safety
///
/// Same as for [`tile`].
unsafe fn rows<const V: usize, const WIDENED: bool>(
    job: &TileJob<bf16>,
    column: usize,
    [number, of]: [usize; 2],
) {
    let tiles = job.rows.div_ceil(TILE_ROWS);
    let step = job.rows.div_ceil(tiles);
    let mut next = NextLines::new(number * tiles, of * tiles);
    for row in (0..job.rows).step_by(step) {
        // SAFETY: guaranteed by the caller; each arm passes the number of rows.
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

/// Computes `MR` rows and `8 * V` columns, starting at `(row, column)`.
///
/// # Safety
///
/// Same as for [`run_tiles`]; the job has the rows and at least one of the columns, and strips of
/// f32 if `WIDENED`.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const MR: usize, const V: usize, const WIDENED: bool>(
    job: &TileJob<bf16>,
    row: usize,
    column: usize,
    next: NextLines,
) {
    let mut sums = [[_mm256_setzero_ps(); V]; MR];
    for term in job.products() {
        let lines = term.b.wrapping_add(term.layout.offset(0, column));
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
            // SAFETY: the panel has a line per word, and A's rows have two elements, or two f32,
            // per word.
            unsafe {
                for half in 0..V * LANES / WIDTH {
                    let half = half * size_of::<u32>() * term.layout.half;
                    prefetch_l2(next.wrapping_add(half));
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
            // SAFETY: guaranteed by the caller.
            unsafe { finish(job, row + i, column + LANES * v, value) };
        }
    }
}

/// Adds the products of a panel line and two lines of a strip of f32.
///
/// # Safety
///
/// AVX2 and FMA; elements of every row and column exist.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn add_strip<const MR: usize, const V: usize>(
    a: *const f32,
    b: PanelWords,
    sums: &mut [[__m256; V]; MR],
) {
    // SAFETY: guaranteed by the caller.
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

/// Loads eight words of a panel line. The read is volatile, so that each half is loaded separately:
/// the compiler would otherwise keep the register, but the accumulators occupy all except four.
///
/// # Safety
///
/// AVX2; the pointer is a panel line.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn words(b: PanelWords, v: usize) -> __m256i {
    // SAFETY: guaranteed by the caller; lines are aligned to cache lines.
    unsafe { place(b, v).read_volatile() }
}

/// Adds the products of a panel line and pairs of unpacked rows.
///
/// # Safety
///
/// Same as for [`add_strip`].
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn add_rows<const MR: usize, const V: usize>(
    a: *const bf16,
    row_stride: usize,
    b: PanelWords,
    sums: &mut [[__m256; V]; MR],
) {
    // SAFETY: guaranteed by the caller.
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
/// Same as for [`Operand::run_steps`](super::operand::Operand::run_steps), with AVX2 and FMA.
pub(crate) unsafe fn run_steps(left: PackedLeft<'_>, x: TokenRows<bf16>, sums: &mut [f32]) {
    let rank = left.rank;
    assert_eq!(sums.len(), rank * COLUMNS, "each row needs its sums");
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
            // SAFETY: guaranteed by the caller; each arm passes the number of rows.
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

/// Computes `R` rows and 16 columns, and adds them to rows of [`COLUMNS`].
///
/// # Safety
///
/// Same as for [`run_steps`].
#[target_feature(enable = "avx2,fma")]
unsafe fn steps<const R: usize>(
    left: PackedLeft<'_>,
    row: usize,
    TokenRows { first: x, stride }: TokenRows<bf16>,
    to: &mut [f32],
) {
    assert!(
        to.len() >= (R - 1) * COLUMNS + 2 * LANES,
        "each row needs its sums"
    );
    let mut sums = [[_mm256_setzero_ps(); 2]; R];
    for (step, words) in left.words.chunks_exact(left.rank).enumerate() {
        let words = &words[row..row + R];
        let first = x.wrapping_add(2 * step * stride);
        let second = first.wrapping_add(stride);
        prefetch_l1(first.wrapping_add(TOKENS_AHEAD * stride));
        prefetch_l1(second.wrapping_add(TOKENS_AHEAD * stride));
        // SAFETY: there are two rows of elements for each word.
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
            // SAFETY: the pointers have eight elements.
            unsafe { store(to.as_mut_ptr(), _mm256_add_ps(load(to.as_ptr()), sum)) };
        }
    }
}

/// Loads words of a panel line.
///
/// # Safety
///
/// AVX2; there are `8 * V` words.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn line<const V: usize>(b: PanelWords) -> [__m256i; V] {
    let mut words = [_mm256_setzero_si256(); V];
    for (v, words) in words.iter_mut().enumerate() {
        // SAFETY: guaranteed by the caller.
        *words = unsafe { _mm256_loadu_si256(place(b, v)) };
    }
    words
}

/// Offset of register `v` of a panel line.
#[inline(always)]
fn place(PanelWords { words: b, layout }: PanelWords, v: usize) -> *const __m256i {
    let half = b.wrapping_add(v * LANES / WIDTH * layout.half);
    half.wrapping_add(v * LANES % WIDTH).cast()
}

/// Adds bias and residual to 8 columns of a row and stores them.
///
/// # Safety
///
/// Same as for [`tile`].
#[target_feature(enable = "avx2,fma")]
unsafe fn finish(job: &TileJob<bf16>, row: usize, column: usize, mut value: __m256) {
    let index = row * job.output_stride + column;
    let residual = job
        .residual
        .wrapping_add(row * job.residual_stride + column);
    let bias = job.bias.wrapping_add(column);
    let n = job.columns.saturating_sub(column).min(LANES);
    // SAFETY: all pointers have the columns of the row.
    unsafe {
        if n == LANES {
            if !job.bias.is_null() {
                value = _mm256_add_ps(value, load(bias));
            }
            if !job.residual.is_null() {
                value = _mm256_add_ps(value, load(residual));
            }
            match job.output {
                TileOutput::F32(to) => store(to.wrapping_add(index), value),
                TileOutput::Bf16(to) => store(to.wrapping_add(index), value),
            }
            return;
        }
        let mut values = [0.0f32; LANES];
        store(values.as_mut_ptr(), value);
        for (i, &value) in values.iter().enumerate().take(n) {
            let mut value = value;
            if !job.bias.is_null() {
                value += *bias.add(i);
            }
            if !job.residual.is_null() {
                value += *residual.add(i);
            }
            match job.output {
                TileOutput::F32(to) => *to.add(index + i) = value,
                TileOutput::Bf16(to) => *to.add(index + i) = bf16::narrow(value),
            }
        }
    }
}
