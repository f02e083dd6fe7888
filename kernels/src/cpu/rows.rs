//! Work on rows, split between threads.

use std::mem::MaybeUninit;
use std::ops::Range;

use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use super::buffer::{contiguous, is_own, numbers, with_layout_of};
use super::number::Number;
use super::pool::Buffer;

/// Numbers below which a second thread costs more than it brings.
const TASK_NUMBERS: usize = 1 << 14;

/// Numbers that stay in the nearest cache between two passes.
const NEAR_NUMBERS: usize = 1 << 12;

/// Tasks a thread: enough for one that wakes late to be waited for a fourth of its share at most.
const TASKS: usize = 4;

/// Rows of `width` numbers that one task takes, of `rows`.
fn task_rows(rows: usize, width: usize) -> usize {
    let shared = rows.div_ceil(TASKS * rayon::current_num_threads());
    (TASK_NUMBERS / width).max(1).max(shared)
}

/// `rows` rows of `width` numbers that `f` writes, a run of rows at a time.
///
/// # Safety
///
/// `f` initialises all of its target.
pub(crate) unsafe fn write_rows<T: Copy + Send>(
    [rows, width]: [usize; 2],
    f: impl Fn(Range<usize>, &mut [MaybeUninit<T>]) + Sync,
) -> Buffer<T> {
    // SAFETY: the runs cover all of the target, and the caller promises that `f` writes each.
    unsafe { Buffer::filled(rows * width, |y| for_rows(y, width, f)) }
}

/// Whether there is one thread: then the caller does all work itself, and nobody is woken.
pub(crate) fn is_alone() -> bool {
    rayon::current_num_threads() == 1
}

/// Calls `f` with each task, on any thread.
pub(crate) fn for_tasks<T: Sync>(tasks: &[T], f: impl Fn(&T) + Sync) {
    if is_alone() {
        tasks.iter().for_each(f);
    } else {
        tasks.par_iter().for_each(&f);
    }
}

/// What `f` makes of each task, on any thread, in order.
pub(crate) fn map_tasks<T: Sync, R: Send>(tasks: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if is_alone() {
        tasks.iter().map(f).collect()
    } else {
        tasks.par_iter().map(&f).collect()
    }
}

/// Changes rows of `width` numbers, all that `x` has: where they lie, or in new memory if they
/// are shared.
///
/// `f` gets runs of whole rows and the range of these rows.
pub(crate) fn change_rows<T: Number>(
    mut x: FlexTensor,
    width: usize,
    f: impl Fn(Range<usize>, &mut [T]) + Sync,
) -> FlexTensor {
    if is_own(&x) {
        for_rows(T::storage_mut(&mut x), width, f);
        return x;
    }
    let x = contiguous(x);
    let from = numbers::<T>(&x);
    let rows = from.len() / width.max(1);
    // A copied row is changed while it is near.
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

/// Calls `f` with runs of whole rows of `x`, `width` numbers each, and the range of these rows.
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
    if rows <= step || is_alone() {
        f(0..rows, x);
    } else {
        x.par_chunks_mut(step * width)
            .enumerate()
            .for_each(|(i, part)| f(i * step..i * step + part.len() / width, part));
    }
}
