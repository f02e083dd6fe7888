//! Tiles for CPUs that multiply pairs of bf16: up to 12 rows by 32 columns in registers.
//!
//! 24 of the 32 registers accumulate, two hold a line of the panel, and A's pairs are broadcast
//! from memory: 14 loads for 24 multiplications, which the two load ports sustain.
//! A tile whose rows were all packed in strips runs with strides that the compiler knows.

use std::arch::x86_64::{
    __m256bh, __m256i, __m512, __m512bh, __m512i, __mmask16, _mm256_mask_storeu_epi16,
    _mm512_add_ps, _mm512_cvtne2ps_pbh, _mm512_cvtneps_pbh, _mm512_dpbf16_ps, _mm512_loadu_si512,
    _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_set1_epi32, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_storeu_si512,
};
use std::mem::transmute;
use std::ops::Range;

use burn::tensor::bf16;

use super::panels::COLUMNS;
use super::tile::{ROWS, TERMS, TileJob, TileOutput, TileTerm};
use crate::cpu::scratch::with_scratch;

/// Pairs of depths up to which a tile is summed from end to end in registers.
const WHOLE: usize = 384;
/// Most pairs of depths of a part of a deeper one: 256 lines of a panel and of a strip take 44 KiB,
/// which a first level of cache holds.
const PART: usize = 256;

/// # Safety
///
/// As for [`Operand::run_tiles`](super::operand::Operand::run_tiles), and [`has_pairs`](crate::cpu::isa::has_pairs).
pub(crate) unsafe fn run_tiles(jobs: &[TileJob<bf16>]) {
    let Some(first) = jobs.first() else { return };
    if jobs.len() < 2 || first.products().iter().all(|term| term.words <= WHOLE) {
        for job in jobs {
            // SAFETY: as the caller promises.
            unsafe { run(job) };
        }
        return;
    }
    let parts: Vec<(usize, Range<usize>)> = (0..first.n_terms)
        .flat_map(|term| parts(first.terms[term].words).map(move |part| (term, part)))
        .collect();
    with_scratch(jobs.len() * ROWS * COLUMNS, |sums| {
        for (n, (term, part)) in parts.iter().enumerate() {
            for (job, sums) in jobs.iter().zip(sums.chunks_exact_mut(ROWS * COLUMNS)) {
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
                // SAFETY: as the caller promises; the sums have room for any tile.
                unsafe { run(&job) };
            }
        }
    });
}

/// `0..words` in equal parts.
fn parts(words: usize) -> impl Iterator<Item = Range<usize>> {
    let n = words.div_ceil(PART).max(1);
    (0..n).map(move |i| words * i / n..words * (i + 1) / n)
}

/// # Safety
///
/// As for [`run_tiles`].
unsafe fn run(job: &TileJob<bf16>) {
    // SAFETY: as the caller promises; each arm passes the row count that the job states.
    unsafe {
        if job.columns <= 16 {
            with_rows::<1>(job);
        } else {
            with_rows::<2>(job);
        }
    }
}

unsafe fn with_rows<const V: usize>(job: &TileJob<bf16>) {
    // SAFETY: as the caller promises.
    unsafe {
        match job.rows {
            1 => tile::<1, V, false>(job),
            2 => tile::<2, V, false>(job),
            3 => tile::<3, V, false>(job),
            4 => tile::<4, V, false>(job),
            5 => tile::<5, V, false>(job),
            6 => tile::<6, V, false>(job),
            7 => tile::<7, V, false>(job),
            8 => tile::<8, V, false>(job),
            9 => tile::<9, V, false>(job),
            10 => tile::<10, V, false>(job),
            11 => tile::<11, V, false>(job),
            _ if job.products().iter().all(is_strip) => tile::<12, V, true>(job),
            _ => tile::<12, V, false>(job),
        }
    }
}

fn is_strip(term: &TileTerm<bf16>) -> bool {
    (term.row_stride, term.word_stride) == (2, 2 * ROWS)
}

/// A register as pairs of bf16.
#[inline(always)]
pub(super) fn pairs(x: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits of anything.
    unsafe { transmute::<__m512i, __m512bh>(x) }
}

/// Bits of the first `n` of 16 lanes.
pub(super) fn lanes(n: usize) -> __mmask16 {
    if n >= 16 { !0 } else { (1 << n) - 1 }
}

/// # Safety
///
/// As for [`Operand::run_tiles`](super::operand::Operand::run_tiles), with `job.rows == MR`, at most `16 * V` columns,
/// and strips alone where `STRIPS` says so.
#[target_feature(enable = "avx512f,avx512bf16,avx512bw,avx512vl")]
unsafe fn tile<const MR: usize, const V: usize, const STRIPS: bool>(job: &TileJob<bf16>) {
    let mut sums = [[_mm512_setzero_ps(); V]; MR];
    for term in job.products() {
        let mut b = term.b;
        let mut a = term.a;
        let (row_stride, word_stride) = match STRIPS {
            true => (2, 2 * ROWS),
            false => (term.row_stride, term.word_stride),
        };
        for _ in 0..term.words {
            let mut line = [_mm512_setzero_si512(); V];
            // SAFETY: the panel has a line for each word, A's rows two elements.
            unsafe {
                for (v, line) in line.iter_mut().enumerate() {
                    *line = _mm512_loadu_si512(b.add(16 * v).cast());
                }
                for (i, sum) in sums.iter_mut().enumerate() {
                    let word = a.add(i * row_stride).cast::<i32>().read_unaligned();
                    let word = pairs(_mm512_set1_epi32(word));
                    for (sum, &line) in sum.iter_mut().zip(&line) {
                        *sum = _mm512_dpbf16_ps(*sum, word, pairs(line));
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

/// Adds what is to be added to 16 columns of a row and writes them.
///
/// # Safety
///
/// As for [`tile`].
#[target_feature(enable = "avx512f,avx512bf16,avx512bw,avx512vl")]
unsafe fn finish(job: &TileJob<bf16>, row: usize, column: usize, mut value: __m512) {
    let mask = lanes(job.columns.saturating_sub(column));
    let at = row * job.output_stride + column;
    // SAFETY: lanes outside the mask are not touched.
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
            TileOutput::F32(to) => _mm512_mask_storeu_ps(to.wrapping_add(at), mask, value),
            TileOutput::Bf16(to) => {
                let narrow = transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(value));
                _mm256_mask_storeu_epi16(to.wrapping_add(at).cast(), mask, narrow);
            }
        }
    }
}
