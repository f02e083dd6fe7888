//! The norm of spans on a GPU: a group of units per span of a row, which reads it twice, the second
//! time from cache. Other units copy the columns after the spans.

use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::backend::{HeadNormGradients, HeadNormOps, Saved};
use super::runs;
use crate::cube::launch::{UNITS, argument, contiguous, cubes, element, output, vector_size};
use crate::cube::reduce::group_sum;

/// Units per span: one warp.
const LANES: u32 = 32;

#[cube(launch, create_dummy_kernel)]
fn norm_spans<T: Float, N: Size>(
    x: &[Vector<T, N>],
    weight: &[Vector<f32, N>],
    // Gradient of the output; `x` if there is none.
    dy: &[Vector<T, N>],
    y: &mut [Vector<T, N>],
    rows: u32,
    // Vectors per row.
    width: u32,
    // Two runs of spans: the number of spans, and vectors per span.
    first_spans: u32,
    first_length: u32,
    second_spans: u32,
    second_length: u32,
    eps: f32,
    #[comptime] gradient: bool,
    #[define(T)] _dtype: ElemType,
) {
    let lane = UNIT_POS % LANES;
    let spans = first_spans + second_spans;
    // One more item than spans: the columns after them.
    let items = (spans + 1) as usize;
    let item = CUBE_POS * comptime!((UNITS / LANES) as usize) + (UNIT_POS / LANES) as usize;
    let row = item / items;
    let span = (item % items) as u32;
    let mut start = span * first_length;
    let mut length = first_length;
    if span >= first_spans {
        start = first_spans * first_length + (span - first_spans) * second_length;
        length = second_length;
    }
    let is_rest = span == spans;
    if is_rest {
        length = width - start;
    }
    if row >= rows as usize {
        length = comptime!(0u32).runtime();
    }
    let mut normed = length;
    if is_rest {
        normed = comptime!(0u32).runtime();
    }
    let start = start as usize;
    let base = row * width as usize + start;

    let mut squares = Vector::<f32, N>::new(0.0);
    let mut products = Vector::<f32, N>::new(0.0);
    let mut i = lane;
    while i < normed {
        let value = Vector::<f32, N>::cast_from(x[base + i as usize]);
        squares += value * value;
        if comptime!(gradient) {
            let dy = Vector::<f32, N>::cast_from(dy[base + i as usize]);
            products += value * dy * weight[start + i as usize];
        }
        i += LANES;
    }
    let mut scratch = Shared::<[f32]>::new_slice(UNITS as usize);
    let sum = group_sum(&mut scratch, squares.vector_sum(), LANES);
    let elements = max(normed, 1u32) as f32 * squares.vector_size() as f32;
    let scale = 1.0 / (sum / elements + eps).sqrt();
    let mut projection = 0.0f32;
    if comptime!(gradient) {
        let product = group_sum(&mut scratch, products.vector_sum(), LANES);
        projection = scale * scale * scale * product / elements;
    }
    let projection = Vector::<f32, N>::new(projection);
    let scale = Vector::<f32, N>::new(scale);

    let mut i = lane;
    while i < length {
        let index = base + i as usize;
        if is_rest {
            y[index] = dy[index];
        } else {
            let weight = weight[start + i as usize];
            let value = Vector::<f32, N>::cast_from(x[index]);
            if comptime!(gradient) {
                let dy = Vector::<f32, N>::cast_from(dy[index]);
                y[index] = Vector::<T, N>::cast_from(scale * dy * weight - projection * value);
            } else {
                y[index] = Vector::<T, N>::cast_from(value * scale * weight);
            }
        }
        i += LANES;
    }
}

/// Normalised rows of `x`, `[n, heads, c]`, or the gradient of `x` from `dy`; the result has the
/// dtype of `x`.
///
/// # Panics
///
/// If the spans are not at most two runs of equal lengths; check with [`runs`] first.
fn normalized_rows(
    x: CubeTensor,
    weight: CubeTensor,
    dy: Option<CubeTensor>,
    spans: &[usize],
    eps: f32,
) -> CubeTensor {
    let (x, [n, heads, c]) = contiguous(x);
    let (weight, [_]) = contiguous(weight);
    let gradient = dy.is_some();
    let (dy, [_, _, _]) = contiguous(dy.unwrap_or_else(|| x.clone()));
    let y = output(&x, [n, heads, c], x.dtype);
    let width = heads * c;
    if n * width == 0 {
        return y;
    }
    let [first, second] =
        runs(spans).expect("the caller checked that spans have at most two lengths");
    let vector = vector_size(4, &[width, first.length, second.length]);
    let items = n * (spans.len() + 1);
    norm_spans::launch(
        &x.client,
        cubes(&x.client, items.div_ceil((UNITS / LANES) as usize)),
        CubeDim::new_1d(UNITS),
        vector,
        argument(&x),
        argument(&weight),
        argument(&dy),
        argument(&y),
        n as u32,
        (width / vector) as u32,
        first.spans as u32,
        (first.length / vector) as u32,
        second.spans as u32,
        (second.length / vector) as u32,
        eps,
        gradient,
        element(&x),
    );
    y
}

impl HeadNormOps for CubeBackend {
    fn norm_spans(
        x: CubeTensor,
        weight: CubeTensor,
        spans: std::sync::Arc<[usize]>,
        eps: f32,
    ) -> CubeTensor {
        normalized_rows(x, weight, None, &spans, eps)
    }
}

impl HeadNormGradients for CubeBackend {
    fn norm_spans_gradient(saved: Saved<Self>, dy: CubeTensor) -> CubeTensor {
        let Saved {
            x,
            weight,
            spans,
            eps,
        } = saved;
        normalized_rows(x, weight, Some(dy), &spans, eps)
    }
}

#[cfg(feature = "cuda-source")]
pub(crate) fn sources(sources: &mut crate::cube::source::Sources) {
    let dim = CubeDim::new_1d(UNITS);
    for element in crate::cube::source::ELEMENTS {
        for (gradient, form) in [(false, ""), (true, "gradient")] {
            let [x, weight, dy, y] = [0; 4].map(|_| sources.buffer());
            let (device, target, count) = sources.device();
            let kernel = norm_spans::create_dummy_kernel(
                device, target, count, dim, 4, x, weight, dy, y, 1, 1, 1, 1, 1, 1, 1e-5, gradient,
                element,
            );
            sources.add(form, dim, kernel);
        }
    }
}
