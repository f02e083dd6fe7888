//! Looks up embedding rows on a GPU: each unit copies one vector of a row, as f32.

use burn::backend::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::EmbeddingOps;
use crate::DeviceIntegers;
use crate::cube::launch::{argument, contiguous, element, output, units, vector_size};

/// Elements per vector: a unit writes four at once.
const VECTOR: usize = 4;

#[cube(launch, create_dummy_kernel)]
fn copy_rows<T: Float, N: Size>(
    table: &[Vector<T, N>],
    ids: &[u32],
    y: &mut [Vector<f32, N>],
    tokens: u32,
    // Vectors per row.
    width: u32,
    #[define(T)] _dtype: ElemType,
) {
    let width = width as usize;
    let position = ABSOLUTE_POS;
    if position < tokens as usize * width {
        let row = ids[position / width] as usize;
        y[position] = Vector::<f32, N>::cast_from(table[row * width + position % width]);
    }
}

impl EmbeddingOps for CubeBackend {
    fn rows_of_table(table: CubeTensor, ids: DeviceIntegers) -> CubeTensor {
        let (table, [_, d]) = contiguous(table);
        let n = ids.numbers().len();
        let y = output(&table, [n, d], DType::F32);
        if n > 0 && d > 0 {
            let vector = vector_size(VECTOR, &[d]);
            let (count, dim) = units(&table.client, n * d / vector);
            copy_rows::launch(
                &table.client,
                count,
                dim,
                vector,
                argument(&table),
                argument(&ids.on_device(&table)),
                argument(&y),
                n as u32,
                (d / vector) as u32,
                element(&table),
            );
        }
        y
    }
}

#[cfg(feature = "cuda-source")]
pub(crate) fn sources(sources: &mut crate::cube::source::Sources) {
    let dim = CubeDim::new_1d(crate::cube::launch::UNITS);
    for element in crate::cube::source::ELEMENTS {
        let [table, ids, y] = [0; 3].map(|_| sources.buffer());
        let (device, target, count) = sources.device();
        let kernel = copy_rows::create_dummy_kernel(
            device, target, count, dim, VECTOR, table, ids, y, 1, 1, element,
        );
        sources.add("", dim, kernel);
    }
}
