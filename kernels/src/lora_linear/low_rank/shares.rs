//! What adapters add: to the outputs of a stack, each to its own columns, and to the gradient of its
//! input, all to the same.

use cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;

use super::tiles::{
    ALIGNMENT, FRAGMENT, FRAGMENT_VECTORS, Form, Part, UNITS, VECTOR, fragment, no_sums, pitch,
    seen,
};

/// Rows of a cube, of which four units each have one.
pub(super) const ROWS: usize = 64;

/// Columns of a cube.
pub(super) const COLUMNS: usize = 128;

/// Units that share a row.
const SHARING: usize = UNITS / ROWS;

/// Vectors of the columns of a cube.
const COLUMN_VECTORS: usize = COLUMNS / VECTOR;

/// Vectors that a unit has.
const OWN: usize = COLUMN_VECTORS / SHARING;

/// Fragments of a warp: it has 16 rows, and half of the columns.
const OWN_FRAGMENTS: usize = COLUMNS / FRAGMENT / 2;

/// Numbers from one row of the products to the next.
const PRODUCT_PITCH: usize = COLUMNS + 4;

/// Vectors of f32 of a vector of the result.
const QUADS: usize = VECTOR / 4;

/// How the factors lie that are multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Of {
    /// B, `[out, r]`: each adapter has its own columns of the result.
    Outputs,
    /// The same; the result is added to what a tensor of f32 holds.
    OutputsAdded,
    /// A, `[r, in]`: the result is the sum over all adapters, each less what it has dropped.
    Inputs,
}

/// Vectors from row to row of a tile of factors.
const fn factor_pitch(form: Form, of: Of) -> usize {
    match of {
        Of::Inputs => pitch(COLUMNS),
        Of::Outputs | Of::OutputsAdded => pitch(form.fragments * FRAGMENT),
    }
}

/// Vectors of such a tile.
const fn factors_of(form: Form, of: Of) -> usize {
    match of {
        Of::Inputs => form.fragments * FRAGMENT * factor_pitch(form, of),
        Of::Outputs | Of::OutputsAdded => COLUMNS * factor_pitch(form, of),
    }
}

/// Bytes of shared memory, of elements of two bytes.
pub(super) fn shared_bytes(form: Form, of: Of) -> usize {
    let lows = ROWS * pitch(form.fragments * FRAGMENT);
    16 * (lows + factors_of(form, of)) + 4 * ROWS * PRODUCT_PITCH
}

/// `y`, `[n, Σ out]`: of each adapter `its lows * Bᵀ`, in its own columns; zeros where there is none.
#[cube(launch, create_dummy_kernel)]
pub(super) fn output_shares<T: Float, O: Float, N: Size, M: Size, W: Size>(
    lows: &[Vector<T, N>],
    factors: &[Vector<T, N>],
    // What is added to.
    residual: &[Vector<O, M>],
    y: &mut [Vector<O, M>],
    // Of each map; one without an adapter has the rank 0, and no lows.
    parts: Sequence<Part>,
    rows: u32,
    // Vectors of eight elements of a row of `y`.
    pitch: u32,
    #[comptime] form: Form,
    // Where the lows of each map lie, in adapters.
    #[comptime] places: u64,
    #[comptime] of: Of,
    // Vectors of `y` in one of eight elements.
    #[comptime] pieces: usize,
    #[define(T)] _dtype: ElemType,
    #[define(O)] _output: ElemType,
) {
    block::<T, O, N, M, W>(
        lows, factors, residual, y, &parts, rows, pitch, form, places, of, pieces,
    );
}

/// `y`, `[n, in]`: the sum over all adapters of what each sees of `its lows * A`.
#[cube(launch, create_dummy_kernel)]
pub(super) fn input_shares<T: Float, N: Size, W: Size>(
    lows: &[Vector<T, N>],
    factors: &[Vector<T, N>],
    y: &mut [Vector<T, N>],
    parts: Sequence<Part>,
    rows: u32,
    // Vectors of a row of `y`.
    pitch: u32,
    #[comptime] form: Form,
    #[comptime] places: u64,
    #[define(T)] _dtype: ElemType,
) {
    let of = comptime!(Of::Inputs);
    // Nothing is added, so that the lows stand where that would be.
    block::<T, T, N, N, W>(
        lows, factors, lows, y, &parts, rows, pitch, form, places, of, 1usize,
    );
}

/// A cube has 64 rows and 128 columns: of one map of the stack, where factors are those of outputs, or of
/// the input.
#[cube]
fn block<T: Float, O: Float, N: Size, M: Size, W: Size>(
    lows: &[Vector<T, N>],
    factors: &[Vector<T, N>],
    added: &[Vector<O, M>],
    y: &mut [Vector<O, M>],
    parts: &Sequence<Part>,
    rows: u32,
    y_pitch: u32,
    #[comptime] form: Form,
    #[comptime] places: u64,
    #[comptime] of: Of,
    #[comptime] pieces: usize,
) {
    let rows = rows as usize;
    let unit = UNIT_POS as usize;
    let row = unit / SHARING;
    let place = unit % SHARING;
    let token = CUBE_POS_X as usize * ROWS + row;
    let first = CUBE_POS_Y as usize * COLUMN_VECTORS;
    let mut low_tile = Shared::<[Vector<T, N>]>::new_aligned_slice(
        comptime!(ROWS * pitch(form.ranks())),
        ALIGNMENT,
    );
    let mut factor_tile =
        Shared::<[Vector<T, N>]>::new_aligned_slice(comptime!(factors_of(form, of)), ALIGNMENT);
    let mut products = Shared::<[Vector<f32, W>]>::new_aligned_slice(
        comptime!(ROWS * PRODUCT_PITCH / 4),
        ALIGNMENT,
    );
    let mut values = Array::<Vector<f32, N>>::new(OWN);
    #[unroll]
    for v in 0..OWN {
        values[v] = Vector::<f32, N>::new(0.0f32);
    }
    // Where the own columns begin and end in `y`.
    let mut begin = 0usize.runtime();
    let mut width = parts.index(0).width as usize;
    #[unroll]
    for at in 0..comptime!(parts.len()) {
        let part = parts.index(at);
        let is_own = if comptime!(of == Of::Inputs) {
            true.runtime()
        } else {
            CUBE_POS_Z == comptime!(at as u32)
        };
        if is_own {
            begin = part.first as usize;
            width = part.width as usize;
            if part.rank > 0 && first < width {
                let lane = comptime!((places >> (8 * at) & 0xFF) as usize);
                load_tiles::<T, N>(
                    lows,
                    factors,
                    part,
                    lane,
                    first,
                    rows,
                    &mut low_tile,
                    &mut factor_tile,
                    form,
                    of,
                );
                sync_cube();
                multiply::<T, N, W>(&low_tile, &factor_tile, &mut products, form, of);
                sync_cube();
                #[unroll]
                for v in 0..OWN {
                    let column = place + comptime!(v * SHARING);
                    let mut value = Vector::<f32, N>::new(0.0f32);
                    #[unroll]
                    for quad in 0..QUADS {
                        let at = row * comptime!(PRODUCT_PITCH / 4) + column * QUADS + quad;
                        let numbers = products[at];
                        #[unroll]
                        for e in 0..4 {
                            value.insert(comptime!(4 * quad + e), numbers.extract(e));
                        }
                    }
                    if comptime!(of == Of::Inputs && form.is_masked(lane)) {
                        let element = (first + column) * VECTOR;
                        value = seen::<f32, N>(value, part, token, element);
                    }
                    values[v] += value;
                }
                sync_cube();
            }
        }
    }
    if token < rows {
        #[unroll]
        for v in 0..OWN {
            let column = first + place + comptime!(v * SHARING);
            if column < width {
                #[unroll]
                for piece in 0..pieces {
                    let to = (token * y_pitch as usize + begin + column) * pieces + piece;
                    let mut value = Vector::<f32, M>::new(0.0f32);
                    #[unroll]
                    for e in 0..comptime!(VECTOR / pieces) {
                        value.insert(
                            e,
                            values[v].extract(comptime!(piece * (VECTOR / pieces) + e)),
                        );
                    }
                    if comptime!(of == Of::OutputsAdded) {
                        value += Vector::<f32, M>::cast_from(added[to]);
                    }
                    y[to] = Vector::<O, M>::cast_from(value);
                }
            }
        }
    }
}

/// The lows of the cube's rows, and the factors of its columns.
#[cube]
fn load_tiles<T: Float, N: Size>(
    lows: &[Vector<T, N>],
    factors: &[Vector<T, N>],
    part: &Part,
    #[comptime] lane: usize,
    first: usize,
    rows: usize,
    low_tile: &mut Shared<[Vector<T, N>]>,
    factor_tile: &mut Shared<[Vector<T, N>]>,
    #[comptime] form: Form,
    #[comptime] of: Of,
) {
    let rank_vectors = comptime!(form.rank_vectors());
    let mut i = UNIT_POS as usize;
    while i < comptime!(ROWS * rank_vectors) {
        let row = i / rank_vectors;
        let column = i % rank_vectors;
        let token = CUBE_POS_X as usize * ROWS + row;
        let mut value = Vector::<T, N>::cast_from(0.0f32);
        if token < rows {
            let at = token * comptime!(form.low_vectors()) + comptime!(lane * rank_vectors);
            value = lows[at + column];
        }
        low_tile[row * comptime!(pitch(form.ranks())) + column] = value;
        i += UNITS;
    }
    let row_vectors = comptime!(match of {
        Of::Inputs => COLUMN_VECTORS,
        Of::Outputs | Of::OutputsAdded => rank_vectors,
    });
    let mut i = UNIT_POS as usize;
    while i < comptime!(form.ranks() * COLUMN_VECTORS) {
        let row = i / row_vectors;
        let column = i % row_vectors;
        let mut value = Vector::<T, N>::cast_from(0.0f32);
        if comptime!(of == Of::Inputs) {
            if row < part.rank as usize * VECTOR && first + column < part.width as usize {
                let at = part.factor as usize + row * part.width as usize;
                value = factors[at + first + column];
            }
        } else {
            let output = first * VECTOR + row;
            if output < part.width as usize * VECTOR && column < part.rank as usize {
                value = factors[part.factor as usize + output * part.rank as usize + column];
            }
        }
        factor_tile[row * comptime!(factor_pitch(form, of)) + column] = value;
        i += UNITS;
    }
}

/// The products of the tiles, `[rows, columns]`.
#[cube]
fn multiply<T: Float, N: Size, W: Size>(
    lows: &Shared<[Vector<T, N>]>,
    factors: &Shared<[Vector<T, N>]>,
    products: &mut Shared<[Vector<f32, W>]>,
    #[comptime] form: Form,
    #[comptime] of: Of,
) {
    let low_pitch = comptime!(pitch(form.ranks()));
    let factor_pitch = comptime!(factor_pitch(form, of));
    let warp = UNIT_POS as usize / 32;
    let row = warp / 2 * FRAGMENT;
    let sums = no_sums(OWN_FRAGMENTS);
    #[unroll]
    for depth in 0..comptime!(form.fragments) {
        let left = fragment::<T, N>(
            lows,
            row * low_pitch + comptime!(depth * FRAGMENT_VECTORS),
            MatrixIdent::A,
            MatrixLayout::RowMajor,
            low_pitch,
            comptime!(ROWS * low_pitch),
        );
        #[unroll]
        for i in 0..OWN_FRAGMENTS {
            let column = warp % 2 * OWN_FRAGMENTS + i;
            let (start, layout) = if comptime!(of == Of::Inputs) {
                let start = comptime!(depth * FRAGMENT * factor_pitch) + column * FRAGMENT_VECTORS;
                (start, MatrixLayout::RowMajor)
            } else {
                let start = column * comptime!(FRAGMENT * factor_pitch)
                    + comptime!(depth * FRAGMENT_VECTORS);
                (start, MatrixLayout::ColMajor)
            };
            let right = fragment::<T, N>(
                factors,
                start,
                MatrixIdent::B,
                layout,
                factor_pitch,
                comptime!(factors_of(form, of)),
            );
            cmma::execute(&left, &right, sums.index(i), sums.index(i));
        }
    }
    #[unroll]
    for i in 0..OWN_FRAGMENTS {
        let column = (warp % 2 * OWN_FRAGMENTS + i) * FRAGMENT;
        store_quads(products, row * PRODUCT_PITCH + column, sums.index(i));
    }
}

/// Writes a fragment of sums from number `start` on.
#[cube]
fn store_quads<W: Size>(to: &mut Shared<[Vector<f32, W>]>, start: usize, sums: &Matrix<f32>) {
    cmma::store(
        &mut to[start / 4..comptime!(ROWS * PRODUCT_PITCH / 4)],
        sums,
        comptime!(PRODUCT_PITCH as u32),
        MatrixLayout::RowMajor,
    );
}
