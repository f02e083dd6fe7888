//! Row selection on a GPU, with one unit per vector of the result.

use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::backend::{GatherOps, SelectOps};
use super::{RowIndices, Sources};
use crate::cube::launch::{argument, contiguous, element, output, units, upload, vector_size};

#[cube(launch, create_dummy_kernel)]
fn take_rows<T: Float, N: Size>(
    x: &[Vector<T, N>],
    sources: &[u32],
    y: &mut [Vector<T, N>],
    rows: u32,
    // Vectors per row.
    width: u32,
    #[define(T)] _dtype: ElemType,
) {
    let width = width as usize;
    let position = ABSOLUTE_POS;
    if position < rows as usize * width {
        let source = sources[position / width];
        let mut value = Vector::<T, N>::cast_from(0.0f32);
        if source > 0u32 {
            value = x[(source - 1) as usize * width + position % width];
        }
        y[position] = value;
    }
}

impl SelectOps for CubeBackend {
    fn select_rows_of(x: CubeTensor, rows: RowIndices) -> CubeTensor {
        Self::gather_rows(x, rows.sources())
    }
}

impl GatherOps for CubeBackend {
    fn gather_rows(x: CubeTensor, sources: Sources) -> CubeTensor {
        let (x, [_, d]) = contiguous(x);
        let rows = sources.len();
        let y = output(&x, [rows, d], x.dtype);
        if rows * d == 0 {
            return y;
        }
        let vector = vector_size(4, &[d]);
        let (count, dim) = units(&x.client, rows * (d / vector));
        take_rows::launch(
            &x.client,
            count,
            dim,
            vector,
            argument(&x),
            argument(&upload(&x, &sources)),
            argument(&y),
            rows as u32,
            (d / vector) as u32,
            element(&x),
        );
        y
    }
}

#[cfg(feature = "cuda-source")]
pub(crate) fn sources(sources: &mut crate::cube::source::Sources) {
    let dim = CubeDim::new_1d(crate::cube::launch::UNITS);
    for element in crate::cube::source::ELEMENTS {
        let [x, rows, y] = [0; 3].map(|_| sources.buffer());
        let (device, target, count) = sources.device();
        let kernel = take_rows::create_dummy_kernel(
            device, target, count, dim, 4, x, rows, y, 1, 1, element,
        );
        sources.add("", dim, kernel);
    }
}
