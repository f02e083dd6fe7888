//! Gradients of all factors of a stack, read in place and written directly to the optimizer's
//! buffer.

use cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;

use super::tiles::{
    ALIGNMENT, FRAGMENT, FRAGMENT_NUMBERS, FRAGMENT_PITCH, FRAGMENT_VECTORS, KernelSizes, Part,
    Rows, SUM_REGISTERS, TileExtent, UNITS, VECTOR, VECTOR_REGISTERS, fragment, pitch, select_part,
    store, store_tile, zero_sums,
};

/// Columns per cube.
pub(super) const COLUMNS: usize = 64;

/// Vectors per row of a cube's columns.
const COLUMN_VECTORS: usize = COLUMNS / VECTOR;

/// Fragments per row of a cube's columns.
const COLUMN_FRAGMENTS: usize = COLUMNS / FRAGMENT;

/// Row stride of an input tile, in vectors.
const TILE_PITCH: usize = pitch(COLUMNS);

/// Vectors per input tile.
const fn tile_vectors(sizes: KernelSizes) -> usize {
    sizes.gradient_rows * TILE_PITCH
}

/// Vectors per tile of low-rank values of some adapters.
const fn low_tile_vectors(sizes: KernelSizes, lanes: usize) -> usize {
    sizes.gradient_rows * pitch(lanes * sizes.fragments * FRAGMENT)
}

/// Bytes of shared memory, for two-byte elements.
pub(super) fn shared_bytes(sizes: KernelSizes) -> usize {
    16 * (sizes.copies() * tile_vectors(sizes) + low_tile_vectors(sizes, sizes.parts))
        + 4 * 8 * FRAGMENT_NUMBERS
}

/// Registers per unit for sums and prefetched inputs.
pub(super) fn registers(sizes: KernelSizes) -> usize {
    let vectors = sizes.gradient_rows * (COLUMN_VECTORS + sizes.low_vectors());
    VECTOR_REGISTERS * vectors.div_ceil(UNITS) + SUM_REGISTERS * sizes.parts * sizes.fragments
}

/// Shared memory of a cube.
#[derive(CubeType)]
struct SharedTiles<T: Float, N: Size> {
    tile: Shared<[Vector<T, N>]>,
    low_tile: Shared<[Vector<T, N>]>,
    /// One fragment per warp.
    scratch: Shared<[f32]>,
}

/// Writes the gradients of A, `[r, in]`, `d_lowsᵀ drop(x)`, and of B, `[out, r]`, `dyᵀ lows`, to
/// `gradients`.
///
/// A cube has 64 columns, either of `x` for all adapters or of one adapter's part of `dy`, and
/// iterates over tiles of rows. A warp has one fragment of the columns and half of a tile's rows.
#[cube(launch, create_dummy_kernel)]
pub(super) fn lora_factor_gradients<T: Float, N: Size>(
    x: &[Vector<T, N>],
    d_lows: &[Vector<T, N>],
    dy: &[Vector<T, N>],
    lows: &[Vector<T, N>],
    gradients: &mut [f32],
    // Locations in `x` and A, and in `dy` and B.
    inputs: Sequence<Part>,
    outputs: Sequence<Part>,
    rows: u32,
    x_pitch: u32,
    dy_pitch: u32,
    // Number of cubes for columns of `x`; the rest have columns of `dy`.
    input_cubes: u32,
    #[comptime] sizes: KernelSizes,
    #[define(T)] _dtype: ElemType,
) {
    let mut memory = SharedTiles::<T, N> {
        tile: Shared::<[Vector<T, N>]>::new_aligned_slice(
            comptime!(sizes.copies() * tile_vectors(sizes)),
            ALIGNMENT,
        ),
        low_tile: Shared::<[Vector<T, N>]>::new_aligned_slice(
            comptime!(low_tile_vectors(sizes, sizes.parts)),
            ALIGNMENT,
        ),
        scratch: Shared::<[f32]>::new_aligned_slice(comptime!(8 * FRAGMENT_NUMBERS), ALIGNMENT),
    };
    if CUBE_POS_X < input_cubes {
        let first = CUBE_POS_X as usize * COLUMN_VECTORS;
        block::<T, N>(
            x,
            x_pitch as usize,
            d_lows,
            0usize.runtime(),
            &inputs,
            first,
            rows as usize,
            &mut memory,
            gradients,
            sizes,
            true,
        );
    } else {
        // Find the adapter of these columns.
        let mut first = (CUBE_POS_X - input_cubes) as usize * COLUMN_VECTORS;
        let mut number = 0u32.runtime();
        #[unroll]
        for part in 0..comptime!(sizes.parts - 1) {
            let width = outputs.index(part).width as usize;
            let tile_width = width.div_ceil(COLUMN_VECTORS) * COLUMN_VECTORS;
            if number == comptime!(part as u32) && first >= tile_width {
                first -= tile_width;
                number += 1;
            }
        }
        let mut own = Sequence::<Part>::new();
        own.push(select_part(&outputs, number, sizes.parts));
        block::<T, N>(
            dy,
            dy_pitch as usize,
            lows,
            number as usize * comptime!(sizes.rank_vectors()),
            &own,
            first,
            rows as usize,
            &mut memory,
            gradients,
            sizes,
            false,
        );
    }
}

/// Gradients of the factors for 64 columns.
#[cube]
fn block<T: Float, N: Size>(
    from: &[Vector<T, N>],
    from_pitch: usize,
    lows: &[Vector<T, N>],
    // Index of their first vector in a row of `lows`.
    first_low: usize,
    parts: &Sequence<Part>,
    // First vector of the block, relative to the start of the part.
    first: usize,
    rows: usize,
    memory: &mut SharedTiles<T, N>,
    gradients: &mut [f32],
    #[comptime] sizes: KernelSizes,
    // Whether the columns are inputs of all adapters, or outputs of one adapter.
    #[comptime] for_inputs: bool,
) {
    let lanes = comptime!(if for_inputs { sizes.parts } else { 1 });
    let sharing = comptime!(UNITS / sizes.gradient_rows);
    let own = comptime!(COLUMN_VECTORS * sizes.gradient_rows / UNITS);
    let tile_rows = comptime!(Rows {
        sharing,
        own,
        pitch: TILE_PITCH,
        copy: tile_vectors(sizes),
    });
    let lane_vectors = comptime!(lanes * sizes.rank_vectors());
    let own_lows = comptime!((sizes.gradient_rows * lane_vectors).div_ceil(UNITS));
    let low_pitch = comptime!(pitch(lanes * sizes.ranks()));
    let unit = UNIT_POS as usize;
    let row = unit / sharing;
    let lane_in_row = unit % sharing;
    let width = parts.index(0).width as usize;
    let begin = parts.index(0).first as usize + first;

    let mut next_vectors = Array::<Vector<T, N>>::new(own);
    let mut next_lows = Array::<Vector<T, N>>::new(own_lows);
    let sums = zero_sums(comptime!(lanes * sizes.fragments));
    let mut top = 0usize.runtime();
    let mut is_read = false.runtime();
    while top < rows || is_read {
        if is_read {
            sync_cube();
            let token = top - sizes.gradient_rows + row;
            let is_plain = comptime!(!for_inputs);
            store_tile::<T, N>(
                &next_vectors,
                parts,
                &mut memory.tile,
                token,
                first,
                tile_rows,
                sizes,
                is_plain,
            );
            #[unroll]
            for v in 0..own_lows {
                let i = unit + comptime!(v * UNITS);
                if i < comptime!(sizes.gradient_rows * lane_vectors) {
                    memory.low_tile[i / lane_vectors * low_pitch + i % lane_vectors] = next_lows[v];
                }
            }
            sync_cube();
        }
        if top < rows {
            let token = top + row;
            #[unroll]
            for v in 0..own {
                let column = lane_in_row + comptime!(v * sharing);
                let mut value = Vector::<T, N>::cast_from(0.0f32);
                if token < rows && first + column < width {
                    value = from[token * from_pitch + begin + column];
                }
                next_vectors[v] = value;
            }
            #[unroll]
            for v in 0..own_lows {
                let i = unit + comptime!(v * UNITS);
                let token = top + i / lane_vectors;
                let mut value = Vector::<T, N>::cast_from(0.0f32);
                if token < rows && i < comptime!(sizes.gradient_rows * lane_vectors) {
                    let index =
                        token * comptime!(sizes.low_vectors()) + first_low + i % lane_vectors;
                    value = lows[index];
                }
                next_lows[v] = value;
            }
        }
        if is_read {
            add_tile::<T, N>(&memory.tile, &memory.low_tile, &sums, sizes, for_inputs);
        }
        is_read = top < rows;
        top += sizes.gradient_rows;
    }

    write(
        &sums,
        parts,
        first,
        &mut memory.scratch,
        gradients,
        sizes,
        for_inputs,
    );
}

/// Writes the warps' sums as rows of A or of B.
#[cube]
fn write(
    sums: &Sequence<Matrix<f32>>,
    parts: &Sequence<Part>,
    first: usize,
    scratch: &mut Shared<[f32]>,
    gradients: &mut [f32],
    #[comptime] sizes: KernelSizes,
    #[comptime] for_inputs: bool,
) {
    let lanes = comptime!(if for_inputs { sizes.parts } else { 1 });
    let unit = UNIT_POS as usize;
    let width = parts.index(0).width as usize;
    let warp = unit / 32;
    #[unroll]
    for lane in 0..lanes {
        let part = parts.index(lane);
        let rank = part.rank as usize * VECTOR;
        #[unroll]
        for i in 0..comptime!(sizes.fragments) {
            sync_cube();
            store(
                scratch,
                warp * FRAGMENT_NUMBERS,
                sums.index(comptime!(lane * sizes.fragments + i)),
                FRAGMENT_PITCH,
                comptime!(8 * FRAGMENT_NUMBERS),
            );
            sync_cube();
            #[unroll]
            for e in 0..comptime!(FRAGMENT * COLUMNS / UNITS) {
                let number = unit + comptime!(e * UNITS);
                let (column, low) = if comptime!(for_inputs) {
                    (number % COLUMNS, number / COLUMNS)
                } else {
                    (number / FRAGMENT, number % FRAGMENT)
                };
                let (row, beside) = if comptime!(for_inputs) {
                    (low, column % FRAGMENT)
                } else {
                    (column % FRAGMENT, low)
                };
                let index = column / FRAGMENT * FRAGMENT_NUMBERS + row * FRAGMENT_PITCH + beside;
                let second_index = index + comptime!(COLUMN_FRAGMENTS * FRAGMENT_NUMBERS);
                let sum = scratch[index] + scratch[second_index];
                let low = low + comptime!(i * FRAGMENT);
                let column = first * VECTOR + column;
                if low < rank && column < width * VECTOR {
                    let to = part.factor as usize * VECTOR;
                    if comptime!(for_inputs) {
                        gradients[to + low * (width * VECTOR) + column] = sum;
                    } else {
                        gradients[to + column * rank + low] = sum;
                    }
                }
            }
        }
    }
}

/// Adds the products of a tile to the warp's sums.
#[cube]
fn add_tile<T: Float, N: Size>(
    tile: &Shared<[Vector<T, N>]>,
    lows: &Shared<[Vector<T, N>]>,
    sums: &Sequence<Matrix<f32>>,
    #[comptime] sizes: KernelSizes,
    #[comptime] for_inputs: bool,
) {
    let lanes = comptime!(if for_inputs { sizes.parts } else { 1 });
    let low_pitch = comptime!(pitch(lanes * sizes.ranks()));
    let copies = comptime!(if for_inputs { sizes.copies() } else { 1 });
    let tile_extent = comptime!(TileExtent {
        pitch: TILE_PITCH,
        size: copies * tile_vectors(sizes)
    });
    let low_extent = comptime!(TileExtent {
        pitch: low_pitch,
        size: low_tile_vectors(sizes, lanes)
    });
    let warp = UNIT_POS as usize / 32;
    let column = warp % COLUMN_FRAGMENTS * FRAGMENT_VECTORS;
    let half = warp / COLUMN_FRAGMENTS;
    #[unroll]
    for step in 0..comptime!(sizes.gradient_rows / FRAGMENT / 2) {
        let depth = half * comptime!(sizes.gradient_rows / 2) + comptime!(step * FRAGMENT);
        #[unroll]
        for lane in 0..lanes {
            let copy = comptime!(if for_inputs { sizes.copy_of(lane) } else { 0 });
            let tile_start = comptime!(copy * tile_vectors(sizes)) + depth * TILE_PITCH + column;
            #[unroll]
            for i in 0..comptime!(sizes.fragments) {
                let offset = comptime!((lane * sizes.fragments + i) * FRAGMENT_VECTORS);
                let lows_start = depth * low_pitch + offset;
                let sum = sums.index(comptime!(lane * sizes.fragments + i));
                if comptime!(for_inputs) {
                    let left = fragment::<T, N>(
                        lows,
                        lows_start,
                        MatrixIdent::A,
                        MatrixLayout::ColMajor,
                        low_extent,
                    );
                    let right = fragment::<T, N>(
                        tile,
                        tile_start,
                        MatrixIdent::B,
                        MatrixLayout::RowMajor,
                        tile_extent,
                    );
                    cmma::execute(&left, &right, sum, sum);
                } else {
                    let left = fragment::<T, N>(
                        tile,
                        tile_start,
                        MatrixIdent::A,
                        MatrixLayout::ColMajor,
                        tile_extent,
                    );
                    let right = fragment::<T, N>(
                        lows,
                        lows_start,
                        MatrixIdent::B,
                        MatrixLayout::RowMajor,
                        low_extent,
                    );
                    cmma::execute(&left, &right, sum, sum);
                }
            }
        }
    }
}
