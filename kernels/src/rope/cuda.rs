//! Rotary embedding on a GPU: each unit rotates or copies one pair of vectors.
//!
//! Queries, keys and values of a token are adjacent, as the projection writes them and attention
//! reads them; values are copied, so that attention reads a single buffer.

use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{Direction, RopeOps, Turn};
use crate::cube::launch::{argument, contiguous, element, output, units, vector_size};

#[cube(launch, create_dummy_kernel)]
fn rotate_pairs<T: Float, N: Size>(
    x: &[Vector<T, N>],
    cos: &[Vector<f32, N>],
    sin: &[Vector<f32, N>],
    y: &mut [Vector<T, N>],
    tokens: u32,
    heads: u32,
    rotated_heads: u32,
    // Vectors per half head.
    half: u32,
    sign: f32,
    #[define(T)] _dtype: ElemType,
) {
    let half = half as usize;
    let heads = heads as usize;
    let position = ABSOLUTE_POS;
    if position < tokens as usize * heads * half {
        let column = position % half;
        let head = position / half % heads;
        let token = position / half / heads;
        let first = (token * heads + head) * 2 * half + column;
        let second = first + half;
        if head < rotated_heads as usize {
            let cos = cos[token * half + column];
            let sin = sin[token * half + column] * Vector::<f32, N>::new(sign);
            let x1 = Vector::<f32, N>::cast_from(x[first]);
            let x2 = Vector::<f32, N>::cast_from(x[second]);
            y[first] = Vector::<T, N>::cast_from(x1 * cos - x2 * sin);
            y[second] = Vector::<T, N>::cast_from(x2 * cos + x1 * sin);
        } else {
            y[first] = x[first];
            y[second] = x[second];
        }
    }
}

/// Rotates the first `turn.heads` heads of `[n, heads, c]` by the angles of the tables, `[n, 1, c /
/// 2]`, f32, and copies the rest.
fn rope(x: CubeTensor, cos: CubeTensor, sin: CubeTensor, turn: Turn) -> CubeTensor {
    let (x, [n, heads, c]) = contiguous(x);
    let (cos, [_, _, half]) = contiguous(cos);
    let (sin, [_, _, _]) = contiguous(sin);
    let y = output(&x, [n, heads, c], x.dtype);
    if n * heads * half == 0 {
        return y;
    }
    let vector = vector_size(16 / x.dtype.size(), &[half]);
    let (count, dim) = units(&x.client, n * heads * half / vector);
    rotate_pairs::launch(
        &x.client,
        count,
        dim,
        vector,
        argument(&x),
        argument(&cos),
        argument(&sin),
        argument(&y),
        n as u32,
        heads as u32,
        turn.heads as u32,
        (half / vector) as u32,
        match turn.direction {
            Direction::Forward => 1.0,
            Direction::Back => -1.0,
        },
        element(&y),
    );
    y
}

impl RopeOps for CubeBackend {
    fn rotate(x: CubeTensor, cos: CubeTensor, sin: CubeTensor, turn: Turn) -> CubeTensor {
        rope(x, cos, sin, turn)
    }
}

#[cfg(feature = "cuda-source")]
pub(crate) fn sources(sources: &mut crate::cube::source::Sources) {
    let dim = CubeDim::new_1d(crate::cube::launch::UNITS);
    for element in crate::cube::source::ELEMENTS {
        let [x, cos, sin, y] = [0; 4].map(|_| sources.buffer());
        let (device, target, count) = sources.device();
        let vector = 16 / element.size();
        let kernel = rotate_pairs::create_dummy_kernel(
            device, target, count, dim, vector, x, cos, sin, y, 1, 1, 1, 1, 1.0, element,
        );
        sources.add("", dim, kernel);
    }
}
