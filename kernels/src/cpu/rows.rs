//! Splits work on rows between threads.

use std::mem::MaybeUninit;
use std::ops::Range;

use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use super::buffer::{contiguous, numbers, owns_whole_memory, with_layout_of};
use super::number::Number;
use super::pool::Buffer;

/// Elements below which waking a second thread costs more than it saves.
const TASK_NUMBERS: usize = 1 << 14;

/// Elements that stay in the L1 cache between two passes.
const NEAR_NUMBERS: usize = 1 << 12;

/// Tasks per thread: enough that waiting for a late thread costs at most a quarter of its share.
const TASKS: usize = 4;

/// Number of rows per task, for `rows` rows of `width` elements.
fn task_rows(rows: usize, width: usize) -> usize {
    let shared = rows.div_ceil(TASKS * rayon::current_num_threads());
    (TASK_NUMBERS / width).max(1).max(shared)
}

/// `rows` rows of `width` elements, written by `f` in runs of rows.
///
/// # Safety
///
/// `f` initialises all of its target.
pub(crate) unsafe fn write_rows<T: Copy + Send>(
    [rows, width]: [usize; 2],
    f: impl Fn(Range<usize>, &mut [MaybeUninit<T>]) + Sync,
) -> Buffer<T> {
    // SAFETY: the runs cover all of the target, and the caller guarantees that `f` writes each.
    unsafe { Buffer::filled(rows * width, |y| for_rows(y, width, f)) }
}

/// Whether there is only one thread; the caller then does all work without waking another.
pub(crate) fn is_single_threaded() -> bool {
    rayon::current_num_threads() == 1
}

/// Calls `f` for each task, on any thread.
pub(crate) fn for_tasks<T: Sync>(tasks: &[T], f: impl Fn(&T) + Sync) {
    if is_single_threaded() {
        tasks.iter().for_each(f);
    } else {
        tasks.par_iter().for_each(&f);
    }
}

/// The results of `f` for each task, computed on any thread, in order.
pub(crate) fn map_tasks<T: Sync, R: Send>(tasks: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if is_single_threaded() {
        tasks.iter().map(f).collect()
    } else {
        tasks.par_iter().map(&f).collect()
    }
}

/// Modifies the rows of `x`, `width` elements each: in place, or in new memory if they are shared.
///
/// `f` gets runs of whole rows and their row range.
pub(crate) fn change_rows<T: Number>(
    mut x: FlexTensor,
    width: usize,
    f: impl Fn(Range<usize>, &mut [T]) + Sync,
) -> FlexTensor {
    if owns_whole_memory(&x) {
        for_rows(T::storage_mut(&mut x), width, f);
        return x;
    }
    let x = contiguous(x);
    let from = numbers::<T>(&x);
    let rows = from.len() / width.max(1);
    // Copied rows are modified while they are in the cache.
    let near = (NEAR_NUMBERS / width.max(1)).max(1);
    // SAFETY: each row is copied.
    let changed = unsafe {
        write_rows([rows, width], |run, to| {
            for (i, to) in to.chunks_mut(near * width).enumerate() {
                let first = run.start + i * near;
                let rows = first..first + to.len() / width;
                let to = to.write_copy_of_slice(&from[rows.start * width..rows.end * width]);
                f(rows, to);
            }
        })
    };
    with_layout_of(changed, &x)
}

/// Calls `f` with runs of whole rows of `x`, `width` elements each, and their row range.
pub(crate) fn for_rows<T: Copy + Send>(
    x: &mut [T],
    width: usize,
    f: impl Fn(Range<usize>, &mut [T]) + Sync,
) {
    if x.is_empty() {
        return;
    }
    let rows = x.len() / width;
    let step = task_rows(rows, width);
    if rows <= step || is_single_threaded() {
        f(0..rows, x);
    } else {
        x.par_chunks_mut(step * width)
            .enumerate()
            .for_each(|(i, part)| f(i * step..i * step + part.len() / width, part));
    }
}
