//! Gradients of all factors of a stack, each read where it lies and written where the optimizer reads it.

use cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;

use super::tiles::{
    ALIGNMENT, FRAGMENT, FRAGMENT_NUMBERS, FRAGMENT_PITCH, FRAGMENT_VECTORS, Form, Part, Rows,
    SUM_REGISTERS, UNITS, VECTOR, VECTOR_REGISTERS, chosen, fragment, no_sums, pitch, put, store,
};

/// Columns of a cube.
pub(super) const COLUMNS: usize = 64;

/// Vectors of the columns of a cube.
const COLUMN_VECTORS: usize = COLUMNS / VECTOR;

/// Fragments of the columns of a cube.
const COLUMN_FRAGMENTS: usize = COLUMNS / FRAGMENT;

/// Vectors from row to row of a tile of what is read.
const TILE_PITCH: usize = pitch(COLUMNS);

/// Vectors of such a tile.
const fn tile_of(form: Form) -> usize {
    form.gradient_rows * TILE_PITCH
}

/// Vectors of a tile of low-rank values of some adapters.
const fn lows_of(form: Form, lanes: usize) -> usize {
    form.gradient_rows * pitch(lanes * form.fragments * FRAGMENT)
}

/// Bytes of shared memory, of elements of two bytes.
pub(super) fn shared_bytes(form: Form) -> usize {
    16 * (form.copies() * tile_of(form) + lows_of(form, form.parts)) + 4 * 8 * FRAGMENT_NUMBERS
}

/// Registers of a unit for its sums and for what it has read ahead.
pub(super) fn registers(form: Form) -> usize {
    let vectors = form.gradient_rows * (COLUMN_VECTORS + form.low_vectors());
    VECTOR_REGISTERS * vectors.div_ceil(UNITS) + SUM_REGISTERS * form.parts * form.fragments
}

/// `A`'s gradients `[r, in]`, `d_lowsᵀ (what each adapter sees of x)`, and `B`'s `[out, r]`, `dyᵀ lows`, in
/// `gradients`.
///
/// A cube has 64 columns, of `x` for all adapters or of the part of `dy` that is an adapter's, and walks
/// over tiles of rows. A warp has one fragment of the columns and half of a tile's rows.
#[cube(launch, create_dummy_kernel)]
pub(super) fn factor_gradients<T: Float, N: Size>(
    x: &[Vector<T, N>],
    d_lows: &[Vector<T, N>],
    dy: &[Vector<T, N>],
    lows: &[Vector<T, N>],
    gradients: &mut [f32],
    // Of `x` with A's places, and of `dy` with B's.
    inputs: Sequence<Part>,
    outputs: Sequence<Part>,
    rows: u32,
    x_pitch: u32,
    dy_pitch: u32,
    // Cubes that have columns of `x`; the others are `chosen_from` by the columns of `dy`.
    input_cubes: u32,
    #[comptime] form: Form,
    #[define(T)] _dtype: ElemType,
) {
    let mut tile = Shared::<[Vector<T, N>]>::new_aligned_slice(
        comptime!(form.copies() * tile_of(form)),
        ALIGNMENT,
    );
    let mut low_tile = Shared::<[Vector<T, N>]>::new_aligned_slice(
        comptime!(lows_of(form, form.parts)),
        ALIGNMENT,
    );
    let mut scratch =
        Shared::<[f32]>::new_aligned_slice(comptime!(8 * FRAGMENT_NUMBERS), ALIGNMENT);
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
            &mut tile,
            &mut low_tile,
            &mut scratch,
            gradients,
            form,
            true,
        );
    } else {
        // Whose columns they are.
        let mut first = (CUBE_POS_X - input_cubes) as usize * COLUMN_VECTORS;
        let mut at = 0u32.runtime();
        #[unroll]
        for part in 0..comptime!(form.parts - 1) {
            let width = outputs.index(part).width as usize;
            let taken = width.div_ceil(COLUMN_VECTORS) * COLUMN_VECTORS;
            if at == comptime!(part as u32) && first >= taken {
                first -= taken;
                at += 1;
            }
        }
        let mut own = Sequence::<Part>::new();
        own.push(chosen(&outputs, at, form.parts));
        block::<T, N>(
            dy,
            dy_pitch as usize,
            lows,
            at as usize * comptime!(form.rank_vectors()),
            &own,
            first,
            rows as usize,
            &mut tile,
            &mut low_tile,
            &mut scratch,
            gradients,
            form,
            false,
        );
    }
}

/// The gradients of the factors that belong to 64 columns.
#[cube]
fn block<T: Float, N: Size>(
    from: &[Vector<T, N>],
    from_pitch: usize,
    lows: &[Vector<T, N>],
    // Their first vector in a row of `lows`.
    first_low: usize,
    parts: &Sequence<Part>,
    // The first vector of the block, counted from where the part begins.
    first: usize,
    rows: usize,
    tile: &mut Shared<[Vector<T, N>]>,
    low_tile: &mut Shared<[Vector<T, N>]>,
    scratch: &mut Shared<[f32]>,
    gradients: &mut [f32],
    #[comptime] form: Form,
    // Whether the columns are those of all adapters' inputs; else one adapter's outputs.
    #[comptime] of_inputs: bool,
) {
    let lanes = comptime!(if of_inputs { form.parts } else { 1 });
    let sharing = comptime!(UNITS / form.gradient_rows);
    let own = comptime!(COLUMN_VECTORS * form.gradient_rows / UNITS);
    let tile_rows = comptime!(Rows {
        sharing,
        own,
        pitch: TILE_PITCH,
        copy: tile_of(form),
    });
    let lane_vectors = comptime!(lanes * form.rank_vectors());
    let own_lows = comptime!((form.gradient_rows * lane_vectors).div_ceil(UNITS));
    let low_pitch = comptime!(pitch(lanes * form.ranks()));
    let unit = UNIT_POS as usize;
    let row = unit / sharing;
    let place = unit % sharing;
    let width = parts.index(0).width as usize;
    let begin = parts.index(0).first as usize + first;

    let mut ahead = Array::<Vector<T, N>>::new(own);
    let mut lows_ahead = Array::<Vector<T, N>>::new(own_lows);
    let sums = no_sums(comptime!(lanes * form.fragments));
    let mut top = 0usize.runtime();
    let mut is_read = false.runtime();
    while top < rows || is_read {
        if is_read {
            sync_cube();
            let token = top - form.gradient_rows + row;
            let is_plain = comptime!(!of_inputs);
            put::<T, N>(&ahead, parts, tile, token, first, tile_rows, form, is_plain);
            #[unroll]
            for v in 0..own_lows {
                let i = unit + comptime!(v * UNITS);
                if i < comptime!(form.gradient_rows * lane_vectors) {
                    low_tile[i / lane_vectors * low_pitch + i % lane_vectors] = lows_ahead[v];
                }
            }
            sync_cube();
        }
        if top < rows {
            let token = top + row;
            #[unroll]
            for v in 0..own {
                let column = place + comptime!(v * sharing);
                let mut value = Vector::<T, N>::cast_from(0.0f32);
                if token < rows && first + column < width {
                    value = from[token * from_pitch + begin + column];
                }
                ahead[v] = value;
            }
            #[unroll]
            for v in 0..own_lows {
                let i = unit + comptime!(v * UNITS);
                let token = top + i / lane_vectors;
                let mut value = Vector::<T, N>::cast_from(0.0f32);
                if token < rows && i < comptime!(form.gradient_rows * lane_vectors) {
                    let at = token * comptime!(form.low_vectors()) + first_low + i % lane_vectors;
                    value = lows[at];
                }
                lows_ahead[v] = value;
            }
        }
        if is_read {
            add_tile::<T, N>(&*tile, &*low_tile, &sums, form, of_inputs);
        }
        is_read = top < rows;
        top += form.gradient_rows;
    }

    write(&sums, parts, first, scratch, gradients, form, of_inputs);
}

/// Writes the warps' sums as rows of A or of B.
#[cube]
fn write(
    sums: &Sequence<Matrix<f32>>,
    parts: &Sequence<Part>,
    first: usize,
    scratch: &mut Shared<[f32]>,
    gradients: &mut [f32],
    #[comptime] form: Form,
    #[comptime] of_inputs: bool,
) {
    let lanes = comptime!(if of_inputs { form.parts } else { 1 });
    let unit = UNIT_POS as usize;
    let width = parts.index(0).width as usize;
    let warp = unit / 32;
    #[unroll]
    for lane in 0..lanes {
        let part = parts.index(lane);
        let rank = part.rank as usize * VECTOR;
        #[unroll]
        for i in 0..comptime!(form.fragments) {
            sync_cube();
            store(
                scratch,
                warp * FRAGMENT_NUMBERS,
                sums.index(comptime!(lane * form.fragments + i)),
                FRAGMENT_PITCH,
                comptime!(8 * FRAGMENT_NUMBERS),
            );
            sync_cube();
            #[unroll]
            for e in 0..comptime!(FRAGMENT * COLUMNS / UNITS) {
                let number = unit + comptime!(e * UNITS);
                let (column, low) = if comptime!(of_inputs) {
                    (number % COLUMNS, number / COLUMNS)
                } else {
                    (number / FRAGMENT, number % FRAGMENT)
                };
                let (row, beside) = if comptime!(of_inputs) {
                    (low, column % FRAGMENT)
                } else {
                    (column % FRAGMENT, low)
                };
                let at = column / FRAGMENT * FRAGMENT_NUMBERS + row * FRAGMENT_PITCH + beside;
                let other = at + comptime!(COLUMN_FRAGMENTS * FRAGMENT_NUMBERS);
                let sum = scratch[at] + scratch[other];
                let low = low + comptime!(i * FRAGMENT);
                let column = first * VECTOR + column;
                if low < rank && column < width * VECTOR {
                    let to = part.factor as usize * VECTOR;
                    if comptime!(of_inputs) {
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
    #[comptime] form: Form,
    #[comptime] of_inputs: bool,
) {
    let lanes = comptime!(if of_inputs { form.parts } else { 1 });
    let low_pitch = comptime!(pitch(lanes * form.ranks()));
    let tile_size = comptime!((if of_inputs { form.copies() } else { 1 }) * tile_of(form));
    let low_size = comptime!(lows_of(form, lanes));
    let warp = UNIT_POS as usize / 32;
    let column = warp % COLUMN_FRAGMENTS * FRAGMENT_VECTORS;
    let half = warp / COLUMN_FRAGMENTS;
    #[unroll]
    for step in 0..comptime!(form.gradient_rows / FRAGMENT / 2) {
        let depth = half * comptime!(form.gradient_rows / 2) + comptime!(step * FRAGMENT);
        #[unroll]
        for lane in 0..lanes {
            let copy = comptime!(if of_inputs { form.copy_of(lane) } else { 0 });
            let of_tile = comptime!(copy * tile_of(form)) + depth * TILE_PITCH + column;
            #[unroll]
            for i in 0..comptime!(form.fragments) {
                let place = comptime!((lane * form.fragments + i) * FRAGMENT_VECTORS);
                let of_lows = depth * low_pitch + place;
                let sum = sums.index(comptime!(lane * form.fragments + i));
                if comptime!(of_inputs) {
                    let left = fragment::<T, N>(
                        lows,
                        of_lows,
                        MatrixIdent::A,
                        MatrixLayout::ColMajor,
                        low_pitch,
                        low_size,
                    );
                    let right = fragment::<T, N>(
                        tile,
                        of_tile,
                        MatrixIdent::B,
                        MatrixLayout::RowMajor,
                        TILE_PITCH,
                        tile_size,
                    );
                    cmma::execute(&left, &right, sum, sum);
                } else {
                    let left = fragment::<T, N>(
                        tile,
                        of_tile,
                        MatrixIdent::A,
                        MatrixLayout::ColMajor,
                        TILE_PITCH,
                        tile_size,
                    );
                    let right = fragment::<T, N>(
                        lows,
                        of_lows,
                        MatrixIdent::B,
                        MatrixLayout::RowMajor,
                        low_pitch,
                        low_size,
                    );
                    cmma::execute(&left, &right, sum, sum);
                }
            }
        }
    }
}
