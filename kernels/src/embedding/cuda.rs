//! Rows of a table on a GPU: each unit copies one vector of a row, as f32.

use burn::backend::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::EmbeddingOps;
use crate::cube::launch::{argument, contiguous, element, output, units, upload, vector_size};

/// Numbers of a vector: four are what a unit writes at once.
const VECTOR: usize = 4;

#[cube(launch, create_dummy_kernel)]
fn copy_rows<T: Float, N: Size>(
    table: &[Vector<T, N>],
    ids: &[u32],
    y: &mut [Vector<f32, N>],
    tokens: u32,
    // Vectors of a row.
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
    fn rows_of_table(table: CubeTensor, ids: Vec<u32>) -> CubeTensor {
        let (table, [_, d]) = contiguous(table);
        let y = output(&table, [ids.len(), d], DType::F32);
        if !ids.is_empty() && d > 0 {
            let vector = vector_size(VECTOR, &[d]);
            let (count, dim) = units(&table.client, ids.len() * d / vector);
            copy_rows::launch(
                &table.client,
                count,
                dim,
                vector,
                argument(&table),
                argument(&upload(&table, &ids)),
                argument(&y),
                ids.len() as u32,
                (d / vector) as u32,
                element(&table),
            );
        }
        y
    }
}

#[cfg(feature = "cuda-source")]
pub(crate) fn sources(texts: &mut crate::cube::source::Texts) {
    let dim = CubeDim::new_1d(crate::cube::launch::UNITS);
    for element in crate::cube::source::ELEMENTS {
        let [table, ids, y] = [0; 3].map(|_| texts.buffer());
        let (device, target, count) = texts.device();
        let kernel = copy_rows::create_dummy_kernel(
            device, target, count, dim, VECTOR, table, ids, y, 1, 1, element,
        );
        texts.add("", dim, kernel);
    }
}
