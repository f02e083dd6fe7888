//! Working memory that a thread reuses between calls, aligned to cache lines.

use std::cell::RefCell;

use burn::tensor::bf16;

use super::number::Number;

#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

thread_local! {
    /// The last entry belongs to the outermost call.
    static FREE_LINES: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` with `floats` floats of arbitrary value.
///
/// A nested call gets separate memory.
pub(crate) fn with_scratch<R>(floats: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
    let reused = FREE_LINES.with_borrow_mut(Vec::pop);
    let mut lines = reused.unwrap_or_default();
    let n = floats.div_ceil(16);
    if lines.len() < n {
        lines.resize(n, Line([0.0; 16]));
    }
    // SAFETY: a `Line` is 16 floats without padding, and the vector outlives the slice.
    let all = unsafe {
        std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<f32>(), lines.len() * 16)
    };
    let result = work(&mut all[..floats]);
    FREE_LINES.with_borrow_mut(|free| free.push(lines));
    result
}

/// Calls `work` with `n` elements of a type of at most 32 bits.
pub(crate) fn with_numbers<T: Number, R>(n: usize, work: impl FnOnce(&mut [T]) -> R) -> R {
    let each = const { size_of::<f32>() / size_of::<T>() };
    with_scratch(n.div_ceil(each), |floats| {
        work(&mut in_place_of(floats)[..n])
    })
}

/// Working memory as 16-bit elements.
pub(crate) fn halves(floats: &mut [f32]) -> &mut [bf16] {
    in_place_of(floats)
}

/// Working memory as elements of a type of at most 32 bits.
fn in_place_of<T: Number>(floats: &mut [f32]) -> &mut [T] {
    let each = const { size_of::<f32>() / size_of::<T>() };
    // SAFETY: each element fits in a float, whose alignment is stricter; every bit pattern is
    // valid.
    unsafe { std::slice::from_raw_parts_mut(floats.as_mut_ptr().cast::<T>(), floats.len() * each) }
}

/// Calls `work` with slices of the given sizes, each aligned to cache lines.
pub(crate) fn with_parts<R, const N: usize>(
    sizes: [usize; N],
    work: impl FnOnce([&mut [f32]; N]) -> R,
) -> R {
    let total = sizes.iter().map(|size| size.next_multiple_of(16)).sum();
    with_scratch(total, |mut rest| {
        let parts = sizes.map(|size| {
            let (part, others) = std::mem::take(&mut rest).split_at_mut(size.next_multiple_of(16));
            rest = others;
            &mut part[..size]
        });
        work(parts)
    })
}
