//! The norm of spans on slices; the backward pass recomputes the roots instead of storing them.

use std::mem::MaybeUninit;

use burn::backend::flex::FlexTensor;

use crate::cpu::isa::for_each_isa;
use crate::cpu::number::Number;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::{change_rows, write_rows};
use crate::cpu::sum::sum_of_pairs;

/// The spans of a row, with a weight per element.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spans<'a> {
    pub(super) weight: &'a [f32],
    pub(super) spans: &'a [usize],
    pub(super) eps: f32,
}

/// Normalises rows of `width` elements; the result has the same size.
pub(super) fn forward<T: Number>(x: &[T], width: usize, norm: Spans<'_>) -> Buffer<T> {
    // SAFETY: `norm_rows` writes every element of its target.
    unsafe {
        write_rows([x.len() / width.max(1), width], |rows, y| {
            norm_rows(&x[rows.start * width..rows.end * width], width, norm, y);
        })
    }
}

/// The gradient of `x`, in the memory of `dy` if it is not shared.
pub(super) fn to_gradient<T: Number>(
    dy: FlexTensor,
    x: &[T],
    width: usize,
    norm: Spans<'_>,
) -> FlexTensor {
    change_rows::<T>(dy, width, |rows, dy| {
        gradient_rows(&x[rows.start * width..rows.end * width], width, norm, dy);
    })
}

#[inline(always)]
fn inverse_rms<T: Number>(x: &[T], eps: f32) -> f32 {
    let squares = sum_of_pairs(x, x, |a, b| a.widen() * b.widen());
    1.0 / (squares / x.len() as f32 + eps).sqrt()
}

for_each_isa! {
    fn norm_rows[T: Number](x: &[T], width: usize, norm: Spans<'_>, y: &mut [MaybeUninit<T>]) {
        for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
            let mut first = 0;
            for &span in norm.spans {
                let columns = first..first + span;
                let (x, weight) = (&x[columns.clone()], &norm.weight[columns.clone()]);
                let scale = inverse_rms(x, norm.eps);
                for ((y, &x), &w) in y[columns].iter_mut().zip(x).zip(weight) {
                    y.write(T::narrow(x.widen() * scale * w));
                }
                first += span;
            }
            y[first..].write_copy_of_slice(&x[first..]);
        }
    }
}

for_each_isa! {
    fn gradient_rows[T: Number](x: &[T], width: usize, norm: Spans<'_>, dy: &mut [T]) {
        for (x, dy) in x.chunks_exact(width).zip(dy.chunks_exact_mut(width)) {
            let mut first = 0;
            for &span in norm.spans {
                let columns = first..first + span;
                let (x, weight) = (&x[columns.clone()], &norm.weight[columns.clone()]);
                let dy = &mut dy[columns];
                let scale = inverse_rms(x, norm.eps);
                let mut projection = 0.0;
                for ((x, dy), weight) in x.chunks(PART).zip(dy.chunks(PART)).zip(weight.chunks(PART)) {
                    projection += weighed_product(x, dy, weight);
                }
                let projection = projection * scale * scale / span as f32;
                for ((dy, &x), &w) in dy.iter_mut().zip(x).zip(weight) {
                    *dy = T::narrow(scale * (dy.widen() * w - projection * x.widen()));
                }
                first += span;
            }
        }
    }
}

/// Elements whose products are summed at a time.
const PART: usize = 64;

/// `Σ x dy w` of up to [`PART`] elements.
#[inline(always)]
fn weighed_product<T: Number>(x: &[T], dy: &[T], weight: &[f32]) -> f32 {
    let mut weighed = [0.0f32; PART];
    for ((to, dy), w) in weighed.iter_mut().zip(dy).zip(weight) {
        *to = dy.widen() * w;
    }
    sum_of_pairs(x, &weighed[..x.len()], |x, weighed| x.widen() * weighed)
}
