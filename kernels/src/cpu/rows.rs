//! Work on rows, split between threads.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::buffer::filled;

/// Floats below which a second thread costs more than it brings.
const TASK_FLOATS: usize = 1 << 14;

/// Floats of the whole rows, `width` each, that one task takes.
pub(crate) fn task_floats(width: usize) -> usize {
    width * (TASK_FLOATS / width.max(1)).max(1)
}

/// A slice of the shape of `x` that `f` writes from it, a run of whole rows of `width` floats at a
/// time. `f` also gets the position of the run's first float.
///
/// # Safety
///
/// `f` initialises all of its target.
pub(crate) unsafe fn map_rows(
    x: &[f32],
    width: usize,
    f: impl Fn(usize, &[f32], &mut [MaybeUninit<f32>]) + Sync,
) -> Vec<f32> {
    let step = task_floats(width);
    let fill = |y: &mut [MaybeUninit<f32>]| {
        if x.len() <= step {
            f(0, x, y);
        } else {
            let tasks = y.par_chunks_mut(step).zip(x.par_chunks(step)).enumerate();
            tasks.for_each(|(i, (y, x))| f(i * step, x, y));
        }
    };
    // SAFETY: the runs cover all of the target, and the caller promises that `f` writes each.
    unsafe { filled(x.len(), fill) }
}
