//! Gated linear units on slices: `f(gate) * up` for rows `[gate, up]`, and their gradients.

use std::mem::MaybeUninit;

use super::number::Number;

/// Writes `f(gate) * up`, `[n, width]`, for rows `[gate, up]`, `[n, 2 width]`.
#[inline(always)]
pub(crate) fn gated_rows<T: Number>(
    gate_up: &[T],
    width: usize,
    y: &mut [MaybeUninit<T>],
    f: impl Fn(f32) -> f32,
) {
    for (row, y) in gate_up
        .chunks_exact(2 * width)
        .zip(y.chunks_exact_mut(width))
    {
        let (gate, up) = row.split_at(width);
        for ((y, &gate), &up) in y.iter_mut().zip(gate).zip(up) {
            y.write(T::narrow(f(gate.widen()) * up.widen()));
        }
    }
}

/// Replaces rows `[gate, up]` by their gradients. `f` returns the activation and its derivative.
#[inline(always)]
pub(crate) fn gated_gradient<T: Number>(
    gate_up: &mut [T],
    dy: &[T],
    width: usize,
    f: impl Fn(f32) -> [f32; 2],
) {
    for (row, dy) in gate_up
        .chunks_exact_mut(2 * width)
        .zip(dy.chunks_exact(width))
    {
        let (gates, ups) = row.split_at_mut(width);
        for ((gate, up), dy) in gates.iter_mut().zip(ups).zip(dy) {
            let (u, dy) = (up.widen(), dy.widen());
            let [activation, slope] = f(gate.widen());
            *gate = T::narrow(dy * u * slope);
            *up = T::narrow(dy * activation);
        }
    }
}
