//! Tiles for CPUs that multiply pairs of bf16: up to 12 rows × 32 columns in registers.
//!
//! 24 of the 32 registers accumulate, two hold a line of the panel, and A's pairs are broadcast
//! from memory: 14 loads per 24 multiplications, which the two load ports sustain. A tile whose
//! rows are all packed in strips uses compile-time strides. On CPUs with slow pair instructions,
//! strips hold f32 and the pairs of a panel line are widened on load: 4 extra instructions per 48
//! f32 multiply-adds.

use std::arch::x86_64::{
    __m256bh, __m256i, __m512, __m512bh, __m512i, _mm256_mask_storeu_epi16, _mm512_add_ps,
    _mm512_castsi512_ps, _mm512_cvtne2ps_pbh, _mm512_cvtneps_pbh, _mm512_dpbf16_ps,
    _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
    _mm512_storeu_si512,
};
use std::mem::transmute;
use std::ops::Range;

use burn::tensor::bf16;

use super::panels::COLUMNS;
use super::strips::avx512::widened_pairs;
use super::tile::{ROWS, TERMS, TileJob, TileOutput, TileTerm};
use crate::cpu::lanes_avx512::lanes;
use crate::cpu::scratch::with_scratch;
use crate::cpu::tile_avx512::{LINES_AHEAD, STRIP_AHEAD, ask_to_write, prefetch_l1, prefetch_l2};

/// Maximum pairs of depths per part of a tile with widened rows: the lines of a panel and of a
/// strip then take 38 KiB, which fits in the L1 cache.
const WIDENED_PART: usize = 176;

/// Runs tiles of pairs with the full depth in registers. Lines of a panel arrive from the L2 cache
/// as fast as they are multiplied: on a Zen 5, tiles of 768 pairs take 0.96, and tiles of 1,536
/// pairs 0.95, of the time of tiles that are summed in parts.
///
/// # Safety
///
/// Same as for [`Operand::run_tiles`](super::operand::Operand::run_tiles), and
/// [`has_pairs`](crate::cpu::isa::has_pairs) is true.
pub(crate) unsafe fn run_tiles(jobs: &[TileJob<bf16>]) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match jobs.first() {
            Some(first) if is_widened(first) => {
                in_parts(jobs, WIDENED_PART, COLUMNS, |job, _, _| run(job));
            }
            _ => jobs.iter().for_each(|job| run(job)),
        }
    }
}

/// Calls `run` for each tile with its first column (in steps of `width`), its index among the tiles
/// that read these panel lines, and their number. Products of at most `most` words are computed at
/// once. Deeper products are split into parts of at most this depth, and each part is computed for
/// all tiles before the next.
///
/// # Safety
///
/// Same as for [`run_tiles`].
pub(super) unsafe fn in_parts(
    jobs: &[TileJob<bf16>],
    most: usize,
    width: usize,
    run: impl Fn(&TileJob<bf16>, usize, [usize; 2]),
) {
    let Some(first) = jobs.first() else { return };
    // Depends only on the depth, because the number of tiles varies with the number of threads.
    let is_whole = first.products().iter().all(|term| term.words <= most);
    // All lines of a tile's columns are used (each part by all rows) before other columns.
    let columns = (0..first.columns).step_by(width);
    if is_whole {
        for column in columns {
            for (i, job) in jobs.iter().enumerate() {
                run(job, column, [i, jobs.len()]);
            }
        }
        return;
    }
    let parts: Vec<(usize, Range<usize>)> = (0..first.n_terms)
        .flat_map(|term| parts(first.terms[term].words, most).map(move |part| (term, part)))
        .collect();
    for column in columns {
        with_scratch(jobs.len() * ROWS * COLUMNS, |sums| {
            for (n, (term, part)) in parts.iter().enumerate() {
                let rows = jobs.iter().zip(sums.chunks_exact_mut(ROWS * COLUMNS));
                for (i, (job, sums)) in rows.enumerate() {
                    let mut job = TileJob {
                        terms: [job.terms[*term].part(part.clone()); TERMS],
                        n_terms: 1,
                        ..*job
                    };
                    let sums = sums.as_mut_ptr();
                    if n > 0 {
                        job.bias = std::ptr::null();
                        (job.residual, job.residual_stride) = (sums, COLUMNS);
                    }
                    if n + 1 < parts.len() {
                        (job.output, job.output_stride) = (TileOutput::F32(sums), COLUMNS);
                    }
                    // The sums have space for any tile.
                    run(&job, column, [i, jobs.len()]);
                }
            }
        });
    }
}

/// Splits `0..words` into equal parts of at most `most`.
fn parts(words: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let n = words.div_ceil(most).max(1);
    (0..n).map(move |i| words * i / n..words * (i + 1) / n)
}

/// # Safety
///
/// Same as for [`run_tiles`].
unsafe fn run(job: &TileJob<bf16>) {
    // SAFETY: guaranteed by the caller; each arm passes the row count of the job.
    unsafe {
        match (is_widened(job), job.columns <= 16) {
            (false, true) => with_rows::<1, false>(job),
            (false, false) => with_rows::<2, false>(job),
            (true, true) => with_rows::<1, true>(job),
            (true, false) => with_rows::<2, true>(job),
        }
    }
}

unsafe fn with_rows<const V: usize, const WIDENED: bool>(job: &TileJob<bf16>) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match job.rows {
            1 => tile::<1, V, false, WIDENED>(job),
            2 => tile::<2, V, false, WIDENED>(job),
            3 => tile::<3, V, false, WIDENED>(job),
            4 => tile::<4, V, false, WIDENED>(job),
            5 => tile::<5, V, false, WIDENED>(job),
            6 => tile::<6, V, false, WIDENED>(job),
            7 => tile::<7, V, false, WIDENED>(job),
            8 => tile::<8, V, false, WIDENED>(job),
            9 => tile::<9, V, false, WIDENED>(job),
            10 => tile::<10, V, false, WIDENED>(job),
            11 => tile::<11, V, false, WIDENED>(job),
            _ if !WIDENED && job.products().iter().all(is_strip) => tile::<12, V, true, false>(job),
            _ => tile::<12, V, false, WIDENED>(job),
        }
    }
}

fn is_strip(term: &TileTerm<bf16>) -> bool {
    (term.row_stride, term.word_stride) == (2, 2 * ROWS)
}

/// Whether rows are packed in strips of f32. The products of a tile are either all packed or all
/// unpacked.
pub(super) fn is_widened(job: &TileJob<bf16>) -> bool {
    let mut terms = job.products().iter();
    terms.any(|term| (term.row_stride, term.word_stride) == (2, 4 * ROWS))
}

/// Reinterprets a register as pairs of bf16.
#[inline(always)]
pub(super) fn pairs(x: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits, and every bit pattern is valid.
    unsafe { transmute::<__m512i, __m512bh>(x) }
}

/// # Safety
///
/// Same as for [`Operand::run_tiles`](super::operand::Operand::run_tiles), with `job.rows == MR`
/// and at most `16 * V` columns. `STRIPS` requires rows in strips, `WIDENED` rows in strips of f32.
#[target_feature(enable = "avx512f,avx512bf16,avx512bw,avx512vl")]
unsafe fn tile<const MR: usize, const V: usize, const STRIPS: bool, const WIDENED: bool>(
    job: &TileJob<bf16>,
) {
    let mut sums = [[_mm512_setzero_ps(); V]; MR];
    for i in 0..MR {
        let first = i * job.output_stride;
        match job.output {
            TileOutput::F32(to) => ask_to_write::<V>(to.wrapping_add(first)),
            // 32 elements are one line, or parts of two.
            TileOutput::Bf16(to) => {
                ask_to_write::<1>(to.wrapping_add(first).cast());
                ask_to_write::<1>(to.wrapping_add(first + COLUMNS - 1).cast());
            }
        }
    }
    for term in job.products() {
        let mut b = term.b;
        let mut a = term.a;
        let (row_stride, word_stride) = match (STRIPS, WIDENED) {
            (_, true) => (2, 4 * ROWS),
            (true, _) => (2, 2 * ROWS),
            (false, _) => (term.row_stride, term.word_stride),
        };
        for _ in 0..term.words {
            let mut line = [_mm512_setzero_si512(); V];
            // SAFETY: the panel has a line per word, and A's rows have two elements per word.
            unsafe {
                for (v, line) in line.iter_mut().enumerate() {
                    *line = _mm512_loadu_si512(b.add(16 * v).cast());
                }
                prefetch_l2::<V>(b.wrapping_add(LINES_AHEAD * COLUMNS).cast());
                if STRIPS || WIDENED {
                    prefetch_l1::<1>(a.cast::<f32>().wrapping_add(STRIP_AHEAD));
                }
                if WIDENED {
                    add_widened(a.cast(), line, &mut sums);
                } else {
                    for (i, sum) in sums.iter_mut().enumerate() {
                        let word = a.add(i * row_stride).cast::<i32>().read_unaligned();
                        let word = pairs(_mm512_set1_epi32(word));
                        for (sum, &line) in sum.iter_mut().zip(&line) {
                            *sum = _mm512_dpbf16_ps(*sum, word, pairs(line));
                        }
                    }
                }
            }
            b = b.wrapping_add(COLUMNS);
            a = a.wrapping_add(word_stride);
        }
    }
    let is_plain = V == 2 && job.columns == COLUMNS && job.bias.is_null() && job.residual.is_null();
    if let (true, TileOutput::Bf16(to)) = (is_plain, job.output) {
        for (i, sum) in sums.into_iter().enumerate() {
            let narrow = _mm512_cvtne2ps_pbh(sum[V - 1], sum[0]);
            // SAFETY: the row has all columns.
            unsafe {
                let narrow = transmute::<__m512bh, __m512i>(narrow);
                _mm512_storeu_si512(to.wrapping_add(i * job.output_stride).cast(), narrow);
            }
        }
        return;
    }
    for (i, sum) in sums.into_iter().enumerate() {
        for (v, value) in sum.into_iter().enumerate() {
            // SAFETY: the masks keep every access within the job's columns.
            unsafe { finish(job, i, 16 * v, value) };
        }
    }
}

/// Adds the products of the pairs of a line and two lines of a strip of f32.
///
/// # Safety
///
/// AVX-512F; there are two lines at `a`.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn add_widened<const MR: usize, const V: usize>(
    a: *const f32,
    line: [__m512i; V],
    sums: &mut [[__m512; V]; MR],
) {
    let line = line.map(|words| widened_pairs(_mm512_castsi512_ps(words)));
    for depth in 0..2 {
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the two lines have an element of each row.
            let value = _mm512_set1_ps(unsafe { *a.add(depth * ROWS + i) });
            for (sum, line) in sum.iter_mut().zip(&line) {
                *sum = _mm512_fmadd_ps(value, line[depth], *sum);
            }
        }
    }
}

/// Adds bias and residual to 16 columns of a row and stores them.
///
/// # Safety
///
/// Same as for [`tile`].
#[target_feature(enable = "avx512f,avx512bf16,avx512bw,avx512vl")]
unsafe fn finish(job: &TileJob<bf16>, row: usize, column: usize, mut value: __m512) {
    let mask = lanes(job.columns.saturating_sub(column));
    let index = row * job.output_stride + column;
    // SAFETY: lanes outside the mask are not accessed.
    unsafe {
        if !job.bias.is_null() {
            let bias = _mm512_maskz_loadu_ps(mask, job.bias.wrapping_add(column));
            value = _mm512_add_ps(value, bias);
        }
        if !job.residual.is_null() {
            let residual = _mm512_maskz_loadu_ps(
                mask,
                job.residual
                    .wrapping_add(row * job.residual_stride + column),
            );
            value = _mm512_add_ps(value, residual);
        }
        match job.output {
            TileOutput::F32(to) => _mm512_mask_storeu_ps(to.wrapping_add(index), mask, value),
            TileOutput::Bf16(to) => {
                let narrow = transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(value));
                _mm256_mask_storeu_epi16(to.wrapping_add(index).cast(), mask, narrow);
            }
        }
    }
}
