//! Work on rows, split between threads.

use std::mem::MaybeUninit;
use std::ops::Range;

use rayon::prelude::*;

use super::pool::Buffer;

/// Numbers below which a second thread costs more than it brings.
const TASK_NUMBERS: usize = 1 << 14;

/// Whole rows of `width` numbers that one task takes.
fn task_rows(width: usize) -> usize {
    (TASK_NUMBERS / width).max(1)
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

/// Calls `f` with runs of whole rows of `x`, `width` numbers each, and the range of these rows.
pub(crate) fn for_rows<T: Copy + Send>(
    x: &mut [T],
    width: usize,
    f: impl Fn(Range<usize>, &mut [T]) + Sync,
) {
    if x.is_empty() {
        return;
    }
    let (rows, step) = (x.len() / width, task_rows(width));
    if rows <= step {
        f(0..rows, x);
    } else {
        x.par_chunks_mut(step * width)
            .enumerate()
            .for_each(|(i, part)| f(i * step..i * step + part.len() / width, part));
    }
}
