//! Shared code of the tensor-core attention kernels: tiles in shared memory, in the dtype of the
//! inputs, and tile products on the tensor cores with f32 accumulation.
//!
//! A cube owns a tile of 64 rows and iterates over tiles of the other side with 64 rows, or 32 if
//! the device has too little shared memory. Eight warps share a tile. A result consists of
//! fragments of 16 × 16, in four rows: warp `w` computes every second fragment of row `w / 2`. The
//! register layout of a fragment is not documented, so scores pass through shared memory to be
//! masked and exponentiated, and sums are never rescaled: as in the backward pass, values are added
//! with their final weights. The forward pass therefore first computes the sum of exponentials of
//! each row.

use cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;

use super::tiles::{Block, Head, Heads};
pub(super) use crate::cube::fragments::ALIGNMENT;
use crate::cube::fragments::{FRAGMENT, zeros};

/// Rows of the tile that a cube owns.
pub(super) const ROWS: usize = 64;

/// Units per cube.
pub(super) const UNITS: u32 = 256;

/// Warps per cube.
const WARPS: usize = 8;

/// Units that share a row of scores, if the row is one of the cube's own.
pub(super) const QUARTERS: usize = 4;

/// Elements per vector of 16 bytes.
pub(super) const VECTOR: usize = 8;

/// Compile-time sizes of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CoreTiles {
    /// Head size, a multiple of 32.
    pub(super) columns: usize,
    /// Rows of the tiles that a cube iterates over: 64 or 32.
    pub(super) moving: usize,
    /// Whether a query attends only to its own and earlier keys.
    pub(super) causal: bool,
}

/// Row stride of f32 scores; padded so that rows start in different banks.
pub(super) const fn score_pitch(columns: usize) -> usize {
    columns + 4
}

/// Row stride of 16-bit weights, padded in the same way.
pub(super) const fn weight_pitch(columns: usize) -> usize {
    columns + 8
}

impl CoreTiles {
    /// Row stride of a tile, in elements.
    fn pitch(&self) -> usize {
        self.columns + VECTOR
    }

    /// Vectors in a tile of this many rows.
    pub(super) fn vectors(&self, rows: usize) -> usize {
        rows * self.pitch() / VECTOR
    }

    /// Fragments per result row; a warp computes every second one.
    pub(super) fn own_fragments(&self) -> usize {
        self.columns / (2 * FRAGMENT)
    }

    /// Elements for the scores, whichever side owns the rows, and for staging results.
    pub(super) fn scores(&self) -> usize {
        let own = ROWS * score_pitch(self.moving);
        own.max(self.moving * score_pitch(ROWS))
    }
}

/// Copies `rows` rows of a head, starting at `first`; rows from `last` on are zeros.
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

/// [`load`] for the cube's own tile.
#[cube]
pub(super) fn load_own<T: Float, N: Size>(
    from: &[Vector<T, N>],
    head: &Head,
    block: &Block,
    to: &mut Shared<[Vector<T, N>]>,
    #[comptime] tiles: CoreTiles,
) {
    load::<T, N>(from, head, block.first, block.last, to, ROWS, tiles);
}

/// Copies a tile of keys and one of values of a head, starting at `first`, and synchronises; rows
/// from `last` on are zeros.
#[cube]
pub(super) fn load_keys_and_values<T: Float, N: Size>(
    qkv: &[Vector<T, N>],
    heads: &Heads,
    first: usize,
    last: usize,
    keys: &mut Shared<[Vector<T, N>]>,
    values: &mut Shared<[Vector<T, N>]>,
    #[comptime] tiles: CoreTiles,
) {
    load::<T, N>(qkv, &heads.keys, first, last, keys, tiles.moving, tiles);
    load::<T, N>(qkv, &heads.values, first, last, values, tiles.moving, tiles);
    sync_cube();
}

/// The warp's part of the result of [`add_weighted`], initialised to zero.
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
    // Warps per row of fragments, and adjacent fragments of that row per warp.
    let warps_per_row = comptime!(WARPS / (a_rows / FRAGMENT));
    let own = comptime!(b_rows / FRAGMENT / warps_per_row);
    let row = warp / warps_per_row * FRAGMENT;
    let column = warp % warps_per_row * comptime!(own * FRAGMENT);
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

/// Writes a fragment to rows of `columns` elements.
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

/// Adds the rows of `rows`, each multiplied by its weight, to the warp's part of the result.
///
/// The weights of result `i` are row `i` of `weights`, or column `i` if `transposed`.
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

/// Writes the results of all warps, multiplied by `factor`, as rows `first..last` of a head.
///
/// `scratch` holds scores. Every unit must call this, and must synchronise before it reads
/// `scratch` again.
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
    // Each round stores as many fragments per warp as fit in the scratch.
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
                let vector = column + comptime!(part * width / VECTOR);
                to[head.offset + token * head.stride + vector] = Vector::<T, N>::cast_from(value);
            }
            i += comptime!(UNITS as usize);
        }
    }
}
