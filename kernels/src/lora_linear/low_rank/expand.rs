//! The adapters' contributions: to the outputs of a stack, each in its own columns, and to the
//! gradient of its input, summed over all adapters.

use cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;

use super::tiles::{
    ALIGNMENT, FRAGMENT, FRAGMENT_VECTORS, KernelSizes, Part, TileExtent, UNITS, VECTOR,
    apply_dropout, fragment, pitch, zero_sums,
};

/// Rows per cube; four units share a row.
pub(super) const ROWS: usize = 64;

/// Columns per cube.
pub(super) const COLUMNS: usize = 128;

/// Units per row.
const SHARING: usize = UNITS / ROWS;

/// Vectors per row of a cube's columns.
const COLUMN_VECTORS: usize = COLUMNS / VECTOR;

/// Vectors per unit.
const OWN: usize = COLUMN_VECTORS / SHARING;

/// Fragments per warp, which has 16 rows and half of the columns.
const OWN_FRAGMENTS: usize = COLUMNS / FRAGMENT / 2;

/// Row stride of the products, in elements.
const PRODUCT_PITCH: usize = COLUMNS + 4;

/// f32 vectors per vector of the result.
const QUADS: usize = VECTOR / 4;

/// The product to compute, which determines the layout of the factors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Product {
    /// `low Bᵀ` with B, `[out, r]`: each adapter has its own columns of the result.
    Outputs,
    /// The same product, added to an f32 residual.
    OutputsAdded,
    /// `d_low A` with A, `[r, in]`: the sum over all adapters, each with its dropout mask.
    Inputs,
}

/// Row stride of a factor tile, in vectors.
const fn factor_pitch(sizes: KernelSizes, product: Product) -> usize {
    match product {
        Product::Inputs => pitch(COLUMNS),
        Product::Outputs | Product::OutputsAdded => pitch(sizes.fragments * FRAGMENT),
    }
}

/// Vectors per factor tile.
const fn factor_tile_vectors(sizes: KernelSizes, product: Product) -> usize {
    match product {
        Product::Inputs => sizes.fragments * FRAGMENT * factor_pitch(sizes, product),
        Product::Outputs | Product::OutputsAdded => COLUMNS * factor_pitch(sizes, product),
    }
}

/// Bytes of shared memory, for two-byte elements.
pub(super) fn shared_bytes(sizes: KernelSizes, product: Product) -> usize {
    let lows = ROWS * pitch(sizes.fragments * FRAGMENT);
    16 * (lows + factor_tile_vectors(sizes, product)) + 4 * ROWS * PRODUCT_PITCH
}

/// `y`, `[n, Σ out]`: `lows Bᵀ` of each adapter in its own columns, zeros for layers without an
/// adapter.
#[cube(launch, create_dummy_kernel)]
pub(super) fn lora_b_forward<T: Float, O: Float, N: Size, M: Size, W: Size>(
    lows: &[Vector<T, N>],
    factors: &[Vector<T, N>],
    // The summand.
    residual: &[Vector<O, M>],
    y: &mut [Vector<O, M>],
    // One per layer; a layer without an adapter has rank 0 and no low-rank values.
    parts: Sequence<Part>,
    rows: u32,
    // Eight-element vectors per row of `y`.
    pitch: u32,
    #[comptime] sizes: KernelSizes,
    // Position of each layer's low-rank values, as an adapter index.
    #[comptime] places: u64,
    #[comptime] product: Product,
    // Vectors of `y` per eight-element vector.
    #[comptime] pieces: usize,
    #[define(T)] _dtype: ElemType,
    #[define(O)] _output: ElemType,
) {
    block::<T, O, N, M, W>(
        lows, factors, residual, y, &parts, rows, pitch, sizes, places, product, pieces,
    );
}

/// `y`, `[n, in]`: the sum over all adapters of `drop(lows A)`.
#[cube(launch, create_dummy_kernel)]
pub(super) fn lora_a_backward<T: Float, N: Size, W: Size>(
    lows: &[Vector<T, N>],
    factors: &[Vector<T, N>],
    y: &mut [Vector<T, N>],
    parts: Sequence<Part>,
    rows: u32,
    // Vectors per row of `y`.
    pitch: u32,
    #[comptime] sizes: KernelSizes,
    #[comptime] places: u64,
    #[define(T)] _dtype: ElemType,
) {
    let product = comptime!(Product::Inputs);
    // There is no summand; `lows` is only a placeholder argument.
    block::<T, T, N, N, W>(
        lows, factors, lows, y, &parts, rows, pitch, sizes, places, product, 1usize,
    );
}

/// A cube has 64 rows and 128 columns, of one layer of the stack or of the input.
#[cube]
fn block<T: Float, O: Float, N: Size, M: Size, W: Size>(
    lows: &[Vector<T, N>],
    factors: &[Vector<T, N>],
    added: &[Vector<O, M>],
    y: &mut [Vector<O, M>],
    parts: &Sequence<Part>,
    rows: u32,
    y_pitch: u32,
    #[comptime] sizes: KernelSizes,
    #[comptime] places: u64,
    #[comptime] product: Product,
    #[comptime] pieces: usize,
) {
    let rows = rows as usize;
    let unit = UNIT_POS as usize;
    let row = unit / SHARING;
    let lane_in_row = unit % SHARING;
    let token = CUBE_POS_X as usize * ROWS + row;
    let first = CUBE_POS_Y as usize * COLUMN_VECTORS;
    let mut low_tile = Shared::<[Vector<T, N>]>::new_aligned_slice(
        comptime!(ROWS * pitch(sizes.ranks())),
        ALIGNMENT,
    );
    let mut factor_tile = Shared::<[Vector<T, N>]>::new_aligned_slice(
        comptime!(factor_tile_vectors(sizes, product)),
        ALIGNMENT,
    );
    let mut products = Shared::<[Vector<f32, W>]>::new_aligned_slice(
        comptime!(ROWS * PRODUCT_PITCH / 4),
        ALIGNMENT,
    );
    let mut values = Array::<Vector<f32, N>>::new(OWN);
    #[unroll]
    for v in 0..OWN {
        values[v] = Vector::<f32, N>::new(0.0f32);
    }
    // Start and width of the cube's layer in `y`.
    let mut begin = 0usize.runtime();
    let mut width = parts.index(0).width as usize;
    #[unroll]
    for number in 0..comptime!(parts.len()) {
        let part = parts.index(number);
        let is_own = if comptime!(product == Product::Inputs) {
            true.runtime()
        } else {
            CUBE_POS_Z == comptime!(number as u32)
        };
        if is_own {
            begin = part.first as usize;
            width = part.width as usize;
            if part.rank > 0 && first < width {
                let lane = comptime!((places >> (8 * number) & 0xFF) as usize);
                load_tiles::<T, N>(
                    lows,
                    factors,
                    part,
                    lane,
                    first,
                    rows,
                    &mut low_tile,
                    &mut factor_tile,
                    sizes,
                    product,
                );
                sync_cube();
                multiply::<T, N, W>(&low_tile, &factor_tile, &mut products, sizes, product);
                sync_cube();
                #[unroll]
                for v in 0..OWN {
                    let column = lane_in_row + comptime!(v * SHARING);
                    let mut value = Vector::<f32, N>::new(0.0f32);
                    #[unroll]
                    for quad in 0..QUADS {
                        let index = row * comptime!(PRODUCT_PITCH / 4) + column * QUADS + quad;
                        let numbers = products[index];
                        #[unroll]
                        for e in 0..4 {
                            value.insert(comptime!(4 * quad + e), numbers.extract(e));
                        }
                    }
                    if comptime!(product == Product::Inputs && sizes.is_masked(lane)) {
                        let element = (first + column) * VECTOR;
                        value = apply_dropout::<f32, N>(value, part, token, element);
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
            let column = first + lane_in_row + comptime!(v * SHARING);
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
                    if comptime!(product == Product::OutputsAdded) {
                        value += Vector::<f32, M>::cast_from(added[to]);
                    }
                    y[to] = Vector::<O, M>::cast_from(value);
                }
            }
        }
    }
}

/// Loads the low-rank values of the cube's rows and the factors of its columns.
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
    #[comptime] sizes: KernelSizes,
    #[comptime] product: Product,
) {
    let rank_vectors = comptime!(sizes.rank_vectors());
    let mut i = UNIT_POS as usize;
    while i < comptime!(ROWS * rank_vectors) {
        let row = i / rank_vectors;
        let column = i % rank_vectors;
        let token = CUBE_POS_X as usize * ROWS + row;
        let mut value = Vector::<T, N>::cast_from(0.0f32);
        if token < rows {
            let index = token * comptime!(sizes.low_vectors()) + comptime!(lane * rank_vectors);
            value = lows[index + column];
        }
        low_tile[row * comptime!(pitch(sizes.ranks())) + column] = value;
        i += UNITS;
    }
    let row_vectors = comptime!(match product {
        Product::Inputs => COLUMN_VECTORS,
        Product::Outputs | Product::OutputsAdded => rank_vectors,
    });
    let mut i = UNIT_POS as usize;
    while i < comptime!(sizes.ranks() * COLUMN_VECTORS) {
        let row = i / row_vectors;
        let column = i % row_vectors;
        let mut value = Vector::<T, N>::cast_from(0.0f32);
        if comptime!(product == Product::Inputs) {
            if row < part.rank as usize * VECTOR && first + column < part.width as usize {
                let start = part.factor as usize + row * part.width as usize;
                value = factors[start + first + column];
            }
        } else {
            let output = first * VECTOR + row;
            if output < part.width as usize * VECTOR && column < part.rank as usize {
                value = factors[part.factor as usize + output * part.rank as usize + column];
            }
        }
        factor_tile[row * comptime!(factor_pitch(sizes, product)) + column] = value;
        i += UNITS;
    }
}

/// Multiplies the tiles, `[rows, columns]`.
#[cube]
fn multiply<T: Float, N: Size, W: Size>(
    lows: &Shared<[Vector<T, N>]>,
    factors: &Shared<[Vector<T, N>]>,
    products: &mut Shared<[Vector<f32, W>]>,
    #[comptime] sizes: KernelSizes,
    #[comptime] product: Product,
) {
    let low_pitch = comptime!(pitch(sizes.ranks()));
    let factor_pitch = comptime!(factor_pitch(sizes, product));
    let low_extent = comptime!(TileExtent {
        pitch: low_pitch,
        size: ROWS * low_pitch
    });
    let factor_extent = comptime!(TileExtent {
        pitch: factor_pitch,
        size: factor_tile_vectors(sizes, product)
    });
    let warp = UNIT_POS as usize / 32;
    let row = warp / 2 * FRAGMENT;
    let sums = zero_sums(OWN_FRAGMENTS);
    #[unroll]
    for depth in 0..comptime!(sizes.fragments) {
        let left = fragment::<T, N>(
            lows,
            row * low_pitch + comptime!(depth * FRAGMENT_VECTORS),
            MatrixIdent::A,
            MatrixLayout::RowMajor,
            low_extent,
        );
        #[unroll]
        for i in 0..OWN_FRAGMENTS {
            let column = warp % 2 * OWN_FRAGMENTS + i;
            let (start, layout) = if comptime!(product == Product::Inputs) {
                let start = comptime!(depth * FRAGMENT * factor_pitch) + column * FRAGMENT_VECTORS;
                (start, MatrixLayout::RowMajor)
            } else {
                let start = column * comptime!(FRAGMENT * factor_pitch)
                    + comptime!(depth * FRAGMENT_VECTORS);
                (start, MatrixLayout::ColMajor)
            };
            let right = fragment::<T, N>(factors, start, MatrixIdent::B, layout, factor_extent);
            cmma::execute(&left, &right, sums.index(i), sums.index(i));
        }
    }
    #[unroll]
    for i in 0..OWN_FRAGMENTS {
        let column = (warp % 2 * OWN_FRAGMENTS + i) * FRAGMENT;
        store_quads(products, row * PRODUCT_PITCH + column, sums.index(i));
    }
}

/// Writes an accumulator fragment, starting at element `start`.
#[cube]
fn store_quads<W: Size>(to: &mut Shared<[Vector<f32, W>]>, start: usize, sums: &Matrix<f32>) {
    cmma::store(
        &mut to[start / 4..comptime!(ROWS * PRODUCT_PITCH / 4)],
        sums,
        comptime!(PRODUCT_PITCH as u32),
        MatrixLayout::RowMajor,
    );
}
