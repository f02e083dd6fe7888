//! Some rows on a GPU, a unit for each vector of the result.

use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::backend::{RowsTaken, SelectOps};
use super::{RowNumbers, Sources};
use crate::cube::launch::{argument, contiguous, element, output, units, upload, vector_size};

#[cube(launch, create_dummy_kernel)]
fn take_rows<T: Float, N: Size>(
    x: &[Vector<T, N>],
    sources: &[u32],
    y: &mut [Vector<T, N>],
    rows: u32,
    // Vectors of a row.
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
    fn rows_selected(x: CubeTensor, rows: RowNumbers) -> CubeTensor {
        Self::rows_taken(x, rows.sources())
    }
}

impl RowsTaken for CubeBackend {
    fn rows_taken(x: CubeTensor, sources: Sources) -> CubeTensor {
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
pub(crate) fn sources(texts: &mut crate::cube::source::Texts) {
    let dim = CubeDim::new_1d(crate::cube::launch::UNITS);
    for element in crate::cube::source::ELEMENTS {
        let [x, sources, y] = [0; 3].map(|_| texts.buffer());
        let (device, target, count) = texts.device();
        let kernel = take_rows::create_dummy_kernel(
            device, target, count, dim, 4, x, sources, y, 1, 1, element,
        );
        texts.add("", dim, kernel);
    }
}
