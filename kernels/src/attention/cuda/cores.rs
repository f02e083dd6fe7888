//! What the attention kernels for tensor cores share: tiles in shared memory, in the type of the
//! inputs, and products of tiles by the matrix units, with sums in f32.
//!
//! A cube has a tile of 64 rows of its own and walks over tiles of 64 rows of the other side, or of 32
//! where the device has too little shared memory for 64. Eight warps work on a tile: of a result of
//! four by some fragments of 16 × 16, warp `w` has row `w / 2`, and every second fragment of that row. How a fragment lies in registers is the
//! hardware's secret, so that scores go through shared memory to be masked and exponentiated, and
//! no sum is ever corrected: the forward pass first finds each row's sum of exponentials, and then
//! adds values with their final weights, as the backward pass does.

use cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;

use super::tiles::Head;
pub(super) use crate::cube::fragments::ALIGNMENT;
use crate::cube::fragments::{FRAGMENT, zeros};

/// Rows of the tile that a cube works on.
pub(super) const ROWS: usize = 64;

/// Units of a cube.
pub(super) const UNITS: u32 = 256;

/// Warps of a cube.
const WARPS: usize = 8;

/// Units that share a row of scores where each row is one of the cube's own.
pub(super) const QUARTERS: usize = 4;

/// Elements of a vector, 16 bytes.
pub(super) const VECTOR: usize = 8;

/// Sizes that a kernel is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CoreTiles {
    /// Elements of a head, a multiple of 32.
    pub(super) columns: usize,
    /// Rows of the tiles that a cube walks over: 64 or 32.
    pub(super) moving: usize,
    /// Whether a query sees its own and earlier keys alone.
    pub(super) causal: bool,
}

/// Numbers from one row of f32 scores to the next: rows start in different banks.
pub(super) const fn score_pitch(columns: usize) -> usize {
    columns + 4
}

/// The same of weights in 16 bits.
pub(super) const fn weight_pitch(columns: usize) -> usize {
    columns + 8
}

impl CoreTiles {
    /// Elements from one row of a tile to the next.
    fn pitch(&self) -> usize {
        self.columns + VECTOR
    }

    /// Vectors of a tile of so many rows.
    pub(super) fn vectors(&self, rows: usize) -> usize {
        rows * self.pitch() / VECTOR
    }

    /// Fragments of a row of a result, of which a warp has every second.
    pub(super) fn own_fragments(&self) -> usize {
        self.columns / (2 * FRAGMENT)
    }

    /// Numbers that scores take, whichever side's rows are theirs, and results on their way out.
    pub(super) fn scores(&self) -> usize {
        let own = ROWS * score_pitch(self.moving);
        own.max(self.moving * score_pitch(ROWS))
    }
}

/// Copies the rows from `first` on of a head, `rows` of them; those from `last` on are zeros.
#[cube]
pub(super) fn load<T: Float, N: Size>(
    from: &[Vector<T, N>],
    head: &Head,
    first: usize,
    last: usize,
    to: &mut Shared<[Vector<T, N>]>,
    #[comptime] rows: usize,
    #[comptime] tiles: CoreTiles,
) {
    let vectors = comptime!(tiles.columns / VECTOR);
    let mut i = UNIT_POS as usize;
    while i < comptime!(rows * tiles.columns / VECTOR) {
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

/// Writes the products of `a_rows` rows of `a` with `b_rows` rows of `b`.
#[cube]
pub(super) fn store_products<T: Float, N: Size>(
    a: &Shared<[Vector<T, N>]>,
    b: &Shared<[Vector<T, N>]>,
    products: &mut Shared<[f32]>,
    #[comptime] a_rows: usize,
    #[comptime] b_rows: usize,
    #[comptime] tiles: CoreTiles,
) {
    let warp = (UNIT_POS / 32) as usize;
    // Warps of a row of fragments, and fragments of that row that a warp has, side by side.
    let beside = comptime!(WARPS / (a_rows / FRAGMENT));
    let own = comptime!(b_rows / FRAGMENT / beside);
    let row = warp / beside * FRAGMENT;
    let column = warp % beside * comptime!(own * FRAGMENT);
    let pitch = comptime!(tiles.pitch());
    let row_vectors = comptime!(tiles.pitch() / VECTOR);
    let mut sums = Sequence::<Matrix<f32>>::new();
    #[unroll]
    for _ in 0..own {
        sums.push(zeros());
    }
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
            &a[left..comptime!(tiles.vectors(a_rows))],
            pitch as u32,
        );
        #[unroll]
        for i in 0..own {
            let right = (column + comptime!(i * FRAGMENT)) * row_vectors + depth;
            let right = Matrix::<Vector<T, N>>::from_slice(
                MatrixIdent::B,
                FRAGMENT,
                FRAGMENT,
                FRAGMENT,
                MatrixLayout::ColMajor,
                &b[right..comptime!(tiles.vectors(b_rows))],
                pitch as u32,
            );
            cmma::execute(&left, &right, sums.index(i), sums.index(i));
        }
    }
    let start = row * comptime!(score_pitch(b_rows)) + column;
    #[unroll]
    for i in 0..own {
        let start = start + comptime!(i * FRAGMENT);
        store_fragment(products, start, sums.index(i), b_rows, tiles);
    }
}

/// Writes a fragment into rows of `columns` numbers.
#[cube]
fn store_fragment(
    to: &mut Shared<[f32]>,
    start: usize,
    fragment: &Matrix<f32>,
    #[comptime] columns: usize,
    #[comptime] tiles: CoreTiles,
) {
    cmma::store(
        &mut to[start..comptime!(tiles.scores())],
        fragment,
        comptime!(score_pitch(columns) as u32),
        MatrixLayout::RowMajor,
    );
}

/// Adds rows of `rows`, each times its weight, to the warp's part of the results.
///
/// Row `i` of `weights` has the weights of result `i`, of the rows that the cube walks over; or column
/// `i`, where it is `transposed`.
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
    let pitch = comptime!(weight_pitch(if transposed { ROWS } else { tiles.moving }));
    let all = comptime!(pitch * if transposed { tiles.moving } else { ROWS });
    #[unroll]
    for step in 0..comptime!(tiles.moving / FRAGMENT) {
        let depth = comptime!(step * FRAGMENT);
        let (start, layout) = if comptime!(transposed) {
            (depth * pitch + row, MatrixLayout::ColMajor)
        } else {
            (row * pitch + depth, MatrixLayout::RowMajor)
        };
        let left = Matrix::<T>::from_slice(
            MatrixIdent::A,
            FRAGMENT,
            FRAGMENT,
            FRAGMENT,
            layout,
            &weights[start..all],
            comptime!(pitch as u32),
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
                &rows[start..comptime!(tiles.vectors(tiles.moving))],
                comptime!(tiles.pitch() as u32),
            );
            cmma::execute(&left, &right, sums.index(i), sums.index(i));
        }
    }
}

/// Writes the results of all warps, times `factor`, as rows `first..last` of a head.
///
/// `scratch` holds scores; every unit calls this, and none may read `scratch` afterwards without
/// waiting for the others.
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
    // As many columns at a time as the scratch has, and of each warp half of their fragments.
    let width = comptime!(tiles.moving);
    let pitch = comptime!(score_pitch(width));
    let at_once = comptime!(width / (2 * FRAGMENT));
    #[unroll]
    for part in 0..comptime!(tiles.own_fragments().div_ceil(at_once)) {
        sync_cube();
        #[unroll]
        for i in comptime!(at_once * part)
            ..comptime!((at_once * part + at_once).min(tiles.own_fragments()))
        {
            let column = (warp % 2 + comptime!(2 * (i - at_once * part))) * FRAGMENT;
            store_fragment(scratch, row * pitch + column, sums.index(i), width, tiles);
        }
        sync_cube();
        let vectors = comptime!((tiles.columns - part * width).min(width) / VECTOR);
        let mut i = UNIT_POS as usize;
        while i < comptime!(ROWS * vectors) {
            let row = i / vectors;
            let column = i % vectors;
            let token = first + row;
            if token < last {
                let mut value = Vector::<f32, N>::new(0.0f32);
                #[unroll]
                for e in 0..VECTOR {
                    let sum = scratch[row * pitch + column * VECTOR + e];
                    value.insert(e, sum * factor);
                }
                let place = column + comptime!(part * width / VECTOR);
                to[head.offset + token * head.stride + place] = Vector::<T, N>::cast_from(value);
            }
            i += comptime!(UNITS as usize);
        }
    }
}
