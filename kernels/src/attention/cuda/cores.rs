//! What the attention kernels for tensor cores share: tiles of 64 rows in shared memory, in the
//! type of the inputs, and products of tiles by the matrix units, with sums in f32.
//!
//! Eight warps work on a tile: of a result of four by some fragments of 16 × 16, warp `w` has row
//! `w / 2`, and every second fragment of that row. How a fragment lies in registers is the
//! hardware's secret, so that scores go through shared memory to be masked and exponentiated, and
//! no sum is ever corrected: the forward pass first finds each row's sum of exponentials, and then
//! adds values with their final weights, as the backward pass does.

use cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;

use super::tiles::Head;

/// Rows of a tile.
pub(super) const ROWS: usize = 64;

/// Units of a cube.
pub(super) const UNITS: u32 = 256;

/// Units that share a row of scores.
pub(super) const QUARTERS: usize = 4;

/// Rows, columns and depth of a fragment.
const FRAGMENT: usize = 16;

/// Elements of a vector, 16 bytes.
pub(super) const VECTOR: usize = 8;

/// Numbers from one row of f32 scores to the next: rows start in different banks.
pub(super) const SCORE_PITCH: usize = ROWS + 4;

/// The same of weights in 16 bits.
pub(super) const WEIGHT_PITCH: usize = ROWS + 8;

/// What the hardware wants of the address of a fragment, in bytes.
pub(super) const ALIGNMENT: usize = 128;

/// Sizes that a kernel is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CoreTiles {
    /// Elements of a head, a multiple of 32.
    pub(super) columns: usize,
    /// Whether a query sees its own and earlier keys alone.
    pub(super) causal: bool,
}

impl CoreTiles {
    /// Elements from one row of a tile to the next.
    fn pitch(&self) -> usize {
        self.columns + VECTOR
    }

    /// Vectors of a tile.
    pub(super) fn vectors(&self) -> usize {
        ROWS * self.pitch() / VECTOR
    }

    /// Fragments of a row of a result, of which a warp has every second.
    pub(super) fn own_fragments(&self) -> usize {
        self.columns / (2 * FRAGMENT)
    }
}

/// Copies the rows from `first` on of a head; rows from `last` on are zeros.
#[cube]
pub(super) fn load<T: Float, N: Size>(
    from: &[Vector<T, N>],
    head: &Head,
    first: usize,
    last: usize,
    to: &mut Shared<[Vector<T, N>]>,
    #[comptime] tiles: CoreTiles,
) {
    let vectors = comptime!(tiles.columns / VECTOR);
    let mut i = UNIT_POS as usize;
    while i < comptime!(ROWS * tiles.columns / VECTOR) {
        let row = i / vectors;
        let column = i % vectors;
        let token = first + row;
        let mut value = Vector::<T, N>::cast_from(0.0f32);
        if token < last {
            value = from[head.offset + token * head.stride + column];
        }
        to[row * comptime!(tiles.pitch() / VECTOR) + column] = value;
        i += comptime!(UNITS as usize);
    }
}

#[cube]
fn zeros() -> Matrix<f32> {
    Matrix::<f32>::from_value(
        MatrixIdent::Accumulator,
        FRAGMENT,
        FRAGMENT,
        FRAGMENT,
        MatrixLayout::Undefined,
        0.0f32,
    )
}

/// The warp's part of a result of [`add_weighted`], at zero.
#[cube]
pub(super) fn no_sums(#[comptime] tiles: CoreTiles) -> Sequence<Matrix<f32>> {
    let mut sums = Sequence::<Matrix<f32>>::new();
    #[unroll]
    for _ in 0..comptime!(tiles.own_fragments()) {
        sums.push(zeros());
    }
    sums
}

/// Writes the products of rows of `a` with rows of `b`, `ROWS` × `ROWS` numbers.
#[cube]
pub(super) fn store_products<T: Float, N: Size>(
    a: &Shared<[Vector<T, N>]>,
    b: &Shared<[Vector<T, N>]>,
    products: &mut Shared<[f32]>,
    #[comptime] tiles: CoreTiles,
) {
    let warp = (UNIT_POS / 32) as usize;
    let row = warp / 2 * FRAGMENT;
    let column = warp % 2 * comptime!(2 * FRAGMENT);
    let pitch = comptime!(tiles.pitch());
    let row_vectors = comptime!(tiles.pitch() / VECTOR);
    let first = zeros();
    let second = zeros();
    #[unroll]
    for step in 0..comptime!(tiles.columns / FRAGMENT) {
        let depth = comptime!(step * FRAGMENT / VECTOR);
        let left = row * row_vectors + depth;
        let left = Matrix::<Vector<T, N>>::from_slice(
            MatrixIdent::A,
            FRAGMENT,
            FRAGMENT,
            FRAGMENT,
            MatrixLayout::RowMajor,
            &a[left..comptime!(tiles.vectors())],
            pitch as u32,
        );
        let right = column * row_vectors + depth;
        let right = Matrix::<Vector<T, N>>::from_slice(
            MatrixIdent::B,
            FRAGMENT,
            FRAGMENT,
            FRAGMENT,
            MatrixLayout::ColMajor,
            &b[right..comptime!(tiles.vectors())],
            pitch as u32,
        );
        cmma::execute(&left, &right, &first, &first);
        let right = (column + FRAGMENT) * row_vectors + depth;
        let right = Matrix::<Vector<T, N>>::from_slice(
            MatrixIdent::B,
            FRAGMENT,
            FRAGMENT,
            FRAGMENT,
            MatrixLayout::ColMajor,
            &b[right..comptime!(tiles.vectors())],
            pitch as u32,
        );
        cmma::execute(&left, &right, &second, &second);
    }
    let start = row * SCORE_PITCH + column;
    store_fragment(products, start, &first);
    store_fragment(products, start + FRAGMENT, &second);
}

#[cube]
fn store_fragment(to: &mut Shared<[f32]>, start: usize, fragment: &Matrix<f32>) {
    cmma::store(
        &mut to[start..comptime!(ROWS * SCORE_PITCH)],
        fragment,
        comptime!(SCORE_PITCH as u32),
        MatrixLayout::RowMajor,
    );
}

/// Adds rows of `rows`, each times its weight, to the warp's part of the results.
///
/// Row `i` of `weights` has the weights of result `i`, or column `i` where it is `transposed`.
#[cube]
pub(super) fn add_weighted<T: Float, N: Size>(
    weights: &Shared<[T]>,
    rows: &Shared<[Vector<T, N>]>,
    sums: &Sequence<Matrix<f32>>,
    #[comptime] transposed: bool,
    #[comptime] tiles: CoreTiles,
) {
    let warp = (UNIT_POS / 32) as usize;
    let row = warp / 2 * FRAGMENT;
    #[unroll]
    for step in 0..comptime!(ROWS / FRAGMENT) {
        let depth = comptime!(step * FRAGMENT);
        let (start, layout) = if comptime!(transposed) {
            (depth * WEIGHT_PITCH + row, MatrixLayout::ColMajor)
        } else {
            (row * WEIGHT_PITCH + depth, MatrixLayout::RowMajor)
        };
        let left = Matrix::<T>::from_slice(
            MatrixIdent::A,
            FRAGMENT,
            FRAGMENT,
            FRAGMENT,
            layout,
            &weights[start..comptime!(ROWS * WEIGHT_PITCH)],
            comptime!(WEIGHT_PITCH as u32),
        );
        #[unroll]
        for i in 0..comptime!(tiles.own_fragments()) {
            let column = (warp % 2 + comptime!(2 * i)) * comptime!(FRAGMENT / VECTOR);
            let start = depth * comptime!(tiles.pitch() / VECTOR) + column;
            let right = Matrix::<Vector<T, N>>::from_slice(
                MatrixIdent::B,
                FRAGMENT,
                FRAGMENT,
                FRAGMENT,
                MatrixLayout::RowMajor,
                &rows[start..comptime!(tiles.vectors())],
                comptime!(tiles.pitch() as u32),
            );
            cmma::execute(&left, &right, sums.index(i), sums.index(i));
        }
    }
}

/// Writes the results of all warps, times `factor`, as rows `first..last` of a head.
///
/// `scratch` holds `ROWS` × `SCORE_PITCH` numbers; every unit calls this, and none may read
/// `scratch` afterwards without waiting for the others.
#[cube]
pub(super) fn store<T: Float, N: Size>(
    sums: &Sequence<Matrix<f32>>,
    factor: f32,
    scratch: &mut Shared<[f32]>,
    to: &mut [Vector<T, N>],
    head: &Head,
    first: usize,
    last: usize,
    #[comptime] tiles: CoreTiles,
) {
    let warp = (UNIT_POS / 32) as usize;
    let row = warp / 2 * FRAGMENT;
    // `ROWS` columns at a time, two fragments of each warp.
    #[unroll]
    for part in 0..comptime!(tiles.own_fragments().div_ceil(2)) {
        sync_cube();
        #[unroll]
        for i in comptime!(2 * part)..comptime!((2 * part + 2).min(tiles.own_fragments())) {
            let column = (warp % 2 + comptime!(2 * i - 4 * part)) * FRAGMENT;
            store_fragment(scratch, row * SCORE_PITCH + column, sums.index(i));
        }
        sync_cube();
        let vectors = comptime!((tiles.columns - part * ROWS).min(ROWS) / VECTOR);
        let mut i = UNIT_POS as usize;
        while i < comptime!(ROWS * vectors) {
            let row = i / vectors;
            let column = i % vectors;
            let token = first + row;
            if token < last {
                let mut value = Vector::<f32, N>::new(0.0f32);
                #[unroll]
                for e in 0..VECTOR {
                    let sum = scratch[row * SCORE_PITCH + column * VECTOR + e];
                    value.insert(e, sum * factor);
                }
                let place = column + comptime!(part * ROWS / VECTOR);
                to[head.offset + token * head.stride + place] = Vector::<T, N>::cast_from(value);
            }
            i += comptime!(UNITS as usize);
        }
    }
}
