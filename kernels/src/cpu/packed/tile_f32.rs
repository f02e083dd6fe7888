//! Tiles of f32, made of the tiles that unpacked products use.
//!
//! Products are summed in parts of the depth, each in registers, and a part of the panel stays in
//! the first level of cache while the tiles of all rows pass by. Long sums would lose digits, too:
//! see [`DEPTH`].

use std::ops::Range;

use super::panels::COLUMNS;
use super::tile::{ROWS, TileJob, TileOutput};
use crate::cpu::isa::{Isa, for_each_isa};
use crate::cpu::scratch::with_scratch;
use crate::cpu::tile::{self, Portable, Tile};
#[cfg(target_arch = "x86_64")]
use crate::cpu::{tile_avx2::Avx2, tile_avx512::Avx512};

/// Most depths that are summed before their sum is added to the others. 192 lines of a panel and of
/// a strip take 34 KiB, two thirds of a first level of cache.
const DEPTH: usize = 192;

/// Calls a function with the tile of this CPU for so many columns as its type argument.
macro_rules! with_tile {
    ($columns:expr, $function:ident($($argument:expr),*)) => {
        match Isa::detect() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if $columns <= 16 => $function::<Avx512<1>>($($argument),*),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => $function::<Avx512<2>>($($argument),*),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => $function::<Avx2>($($argument),*),
            Isa::Portable => $function::<Portable>($($argument),*),
        }
    };
}

/// # Safety
///
/// As for [`super::operand::Operand::run_tiles`].
pub(super) unsafe fn run(jobs: &[TileJob<f32>]) {
    let columns = jobs.first().map_or(0, |job| job.columns);
    with_scratch(jobs.len() * ROWS * COLUMNS, |sums| {
        // SAFETY: the instruction set was detected; the rest is the caller's promise.
        unsafe { with_tile!(columns, sum_and_finish(jobs, sums)) }
    });
}

/// # Safety
///
/// As for [`run`], with sums of every job, and the CPU has the instructions of `T`.
unsafe fn sum_and_finish<T: Tile>(jobs: &[TileJob<f32>], sums: &mut [f32]) {
    let n_terms = jobs.first().map_or(0, |job| job.n_terms);
    let mut adds = false;
    for term in 0..n_terms {
        let words = jobs[0].terms[term].words;
        let step = words.div_ceil(words.div_ceil(DEPTH).max(1)).max(1);
        for start in (0..words).step_by(step) {
            for (job, sums) in jobs.iter().zip(sums.chunks_exact_mut(ROWS * COLUMNS)) {
                let depths = start..(start + step).min(words);
                // SAFETY: as the caller promises.
                unsafe { add_depths::<T>(job, term, depths, (sums, adds)) };
            }
            adds = true;
        }
    }
    if !adds {
        sums.fill(0.0);
    }
    for (job, sums) in jobs.iter().zip(sums.chunks_exact(ROWS * COLUMNS)) {
        finish(job, sums);
    }
}

/// Adds part of a product to the sums of a tile, or replaces them.
///
/// # Safety
///
/// As for [`sum_and_finish`].
unsafe fn add_depths<T: Tile>(
    job: &TileJob<f32>,
    term: usize,
    depths: Range<usize>,
    (sums, adds): (&mut [f32], bool),
) {
    let term = &job.terms[term];
    for row in (0..job.rows).step_by(T::ROWS) {
        for column in (0..job.columns).step_by(T::COLUMNS) {
            let a_offset = row * term.row_stride + depths.start * term.word_stride;
            let tile = tile::TileJob {
                a: term.a.wrapping_add(a_offset),
                a_row_stride: term.row_stride,
                a_depth_stride: term.word_stride,
                b: term.b.wrapping_add(depths.start * COLUMNS + column).cast(),
                b_line_stride: COLUMNS,
                c: sums[row * COLUMNS + column..].as_mut_ptr(),
                c_row_stride: COLUMNS,
                rows: (job.rows - row).min(T::ROWS),
                columns: T::COLUMNS,
                depth: depths.len(),
                adds,
            };
            // SAFETY: `COLUMNS` is a multiple of the tile's columns, so that it stays within
            // the panel and the sums; rows and depths are the caller's promise.
            unsafe { T::run(&tile) };
        }
    }
}

for_each_isa! {
    fn finish(job: &TileJob<f32>, sums: &[f32]) {
        let TileOutput::F32(to) = job.output else {
            unreachable!("products of f32 are f32");
        };
        for (i, sum) in sums.chunks_exact(COLUMNS).enumerate().take(job.rows) {
            if job.columns == COLUMNS {
                // SAFETY: as below; the number of columns is known to the compiler here.
                unsafe { finish_whole_row(job, i, sum, to) };
                continue;
            }
            let offset = i * job.output_stride;
            let mut values: [f32; COLUMNS] = sum.try_into().expect("a row of sums");
            // SAFETY: bias, residual and output have `columns` numbers from here on.
            unsafe {
                if !job.bias.is_null() {
                    let bias = std::slice::from_raw_parts(job.bias, job.columns);
                    values.iter_mut().zip(bias).for_each(|(v, b)| *v += b);
                }
                if !job.residual.is_null() {
                    let residual = job.residual.add(i * job.residual_stride);
                    let residual = std::slice::from_raw_parts(residual, job.columns);
                    values.iter_mut().zip(residual).for_each(|(v, r)| *v += r);
                }
                let to = std::slice::from_raw_parts_mut(to.add(offset), job.columns);
                to.copy_from_slice(&values[..job.columns]);
            }
        }
    }
}

/// # Safety
///
/// `job` is as [`run`] demands and has all columns of a panel; it has a row `i`, with sums `sum`.
#[inline(always)]
unsafe fn finish_whole_row(job: &TileJob<f32>, i: usize, sum: &[f32], to: *mut f32) {
    type Row = [f32; COLUMNS];
    // SAFETY: bias, residual and output have as many numbers from here on.
    unsafe {
        let mut values = *sum.as_ptr().cast::<Row>();
        if !job.bias.is_null() {
            let bias = &*job.bias.cast::<Row>();
            values.iter_mut().zip(bias).for_each(|(v, b)| *v += b);
        }
        if !job.residual.is_null() {
            let residual = &*job.residual.add(i * job.residual_stride).cast::<Row>();
            values.iter_mut().zip(residual).for_each(|(v, r)| *v += r);
        }
        *to.add(i * job.output_stride).cast::<Row>() = values;
    }
}

/// # Safety
///
/// As for [`super::operand::Operand::run_steps`].
pub(super) unsafe fn run_steps(left: (&[u32], usize), x: (*const f32, usize), sums: &mut [f32]) {
    // SAFETY: the instruction set was detected; the rest is the caller's promise.
    unsafe { with_tile!(COLUMNS, steps(left, x, sums)) }
}

/// # Safety
///
/// As for [`run_steps`], and the CPU has the instructions of `T`.
unsafe fn steps<T: Tile>(
    (left, rank): (&[u32], usize),
    (x, stride): (*const f32, usize),
    sums: &mut [f32],
) {
    assert_eq!(sums.len(), rank * COLUMNS, "sums of every row");
    let tokens = left.len() / rank;
    let step = DEPTH;
    for start in (0..tokens).step_by(step) {
        for row in (0..rank).step_by(T::ROWS.min(ROWS)) {
            for column in (0..COLUMNS).step_by(T::COLUMNS) {
                let tile = tile::TileJob {
                    a: left[start * rank + row..].as_ptr().cast(),
                    a_row_stride: 1,
                    a_depth_stride: rank,
                    b: x.wrapping_add(start * stride + column),
                    b_line_stride: stride,
                    c: sums[row * COLUMNS + column..].as_mut_ptr(),
                    c_row_stride: COLUMNS,
                    rows: (rank - row).min(T::ROWS),
                    columns: T::COLUMNS,
                    depth: step.min(tokens - start),
                    adds: true,
                };
                // SAFETY: rows of x hold 32 numbers, `left` a word of each row for every token.
                unsafe { T::run(&tile) };
            }
        }
    }
}
