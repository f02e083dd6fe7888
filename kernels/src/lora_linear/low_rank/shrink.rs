//! Low-rank values of all adapters of a stack: from their common input, which is loaded once for
//! all of them, and from the gradients of their outputs.

use cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;

use super::tiles::{
    ALIGNMENT, FRAGMENT, FRAGMENT_NUMBERS, FRAGMENT_PITCH, FRAGMENT_VECTORS, KernelSizes, Part,
    Rows, SUM_REGISTERS, TileExtent, UNITS, VECTOR, VECTOR_REGISTERS, fragment, pitch, select_part,
    store, store_tile, zero_sums,
};

/// Units per row.
const fn sharing(sizes: KernelSizes) -> usize {
    UNITS / sizes.rows
}

/// Warps that share 16 rows and split the depth of a tile, fragment by fragment.
const fn splits(sizes: KernelSizes) -> usize {
    UNITS / 32 * FRAGMENT / sizes.rows
}

/// The product to compute, which determines the layout of the factors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Side {
    /// `x Aᵀ` with A, `[r, in]`: all adapters read the same columns.
    Inputs,
    /// `dy B` with B, `[out, r]`: each adapter reads its own columns and has its own cubes.
    Outputs,
}

impl Side {
    /// Adapters per cube.
    const fn lanes(self, sizes: KernelSizes) -> usize {
        match self {
            Self::Inputs => sizes.parts,
            Self::Outputs => 1,
        }
    }

    /// Copies of an input tile.
    fn copies(self, sizes: KernelSizes) -> usize {
        match self {
            Self::Inputs => sizes.copies(),
            Self::Outputs => 1,
        }
    }

    /// Row stride of a factor tile, in vectors.
    const fn pitch(self, sizes: KernelSizes) -> usize {
        match self {
            Self::Inputs => pitch(sizes.columns),
            Self::Outputs => pitch(sizes.fragments * FRAGMENT),
        }
    }

    /// Vectors per factor tile.
    fn factors(self, sizes: KernelSizes) -> usize {
        match self {
            Self::Inputs => sizes.parts * sizes.ranks() * self.pitch(sizes),
            Self::Outputs => sizes.columns * self.pitch(sizes),
        }
    }

    /// Vectors of a factor tile that a unit loads per adapter.
    fn vectors_per_unit(self, sizes: KernelSizes) -> usize {
        (sizes.ranks() * sizes.columns / VECTOR).div_ceil(UNITS)
    }
}

/// Bytes of shared memory, for two-byte elements.
pub(super) fn shared_bytes(sizes: KernelSizes, side: Side) -> usize {
    let tiles = side.copies(sizes) * sizes.rows * pitch(sizes.columns) + side.factors(sizes);
    16 * tiles + 4 * 8 * FRAGMENT_NUMBERS
}

/// Registers per unit for sums and prefetched inputs.
pub(super) fn registers(sizes: KernelSizes, side: Side) -> usize {
    let lanes = side.lanes(sizes);
    let prefetched = sizes.columns / VECTOR / sharing(sizes) + lanes * side.vectors_per_unit(sizes);
    VECTOR_REGISTERS * prefetched + SUM_REGISTERS * lanes * sizes.fragments
}

/// The `i`-th vector of an adapter's factors for the column tile that starts at vector `tile`;
/// zeros if it does not exist.
#[cube]
fn factor_vector<T: Float, N: Size>(
    factors: &[Vector<T, N>],
    part: &Part,
    tile: usize,
    i: usize,
    #[comptime] sizes: KernelSizes,
    #[comptime] side: Side,
) -> Vector<T, N> {
    let mut value = Vector::<T, N>::cast_from(0.0f32);
    if comptime!(side == Side::Inputs) {
        let row = i / comptime!(sizes.columns / VECTOR);
        let column = tile + i % comptime!(sizes.columns / VECTOR);
        if row < part.rank as usize * VECTOR && column < part.width as usize {
            value = factors[part.factor as usize + row * part.width as usize + column];
        }
    } else {
        let row = tile * VECTOR + i / comptime!(sizes.rank_vectors());
        let column = i % comptime!(sizes.rank_vectors());
        if row < part.width as usize * VECTOR && column < part.rank as usize {
            value = factors[part.factor as usize + row * part.rank as usize + column];
        }
    }
    value
}

/// `lows`, `[n, parts * ranks]`: `scale * drop(x) Aᵀ` of each adapter.
#[cube(launch, create_dummy_kernel)]
pub(super) fn lora_a_forward<T: Float, N: Size>(
    x: &[Vector<T, N>],
    factors: &[Vector<T, N>],
    // Unused.
    narrow: &mut [Vector<T, N>],
    lows: &mut [Vector<T, N>],
    parts: Sequence<Part>,
    rows: u32,
    // Row stride of `x`, in vectors.
    pitch: u32,
    #[comptime] sizes: KernelSizes,
    #[define(T)] _dtype: ElemType,
) {
    let first = 0usize.runtime();
    let side = comptime!(Side::Inputs);
    walk::<T, T, N, N>(
        x, factors, narrow, lows, &parts, first, rows, pitch, sizes, side, 1usize,
    );
}

/// `d_lows`, `[n, parts * ranks]`: `scale * dy B` of each adapter, from its own columns of `dy`. If
/// `dy` is f32, these columns are also written in the products' dtype for other kernels.
#[cube(launch, create_dummy_kernel)]
pub(super) fn lora_b_backward<X: Float, T: Float, M: Size, N: Size>(
    dy: &[Vector<X, M>],
    factors: &[Vector<T, N>],
    narrow: &mut [Vector<T, N>],
    d_lows: &mut [Vector<T, N>],
    parts: Sequence<Part>,
    rows: u32,
    // Row stride of `dy`, in eight-element vectors.
    pitch: u32,
    #[comptime] sizes: KernelSizes,
    // Vectors of `dy` per eight-element vector.
    #[comptime] pieces: usize,
    #[define(X)] _given: ElemType,
    #[define(T)] _dtype: ElemType,
) {
    let mut own = Sequence::<Part>::new();
    own.push(select_part(&parts, CUBE_POS_Y, sizes.parts));
    let first = CUBE_POS_Y as usize;
    let side = comptime!(Side::Outputs);
    walk::<X, T, M, N>(
        dy, factors, narrow, d_lows, &own, first, rows, pitch, sizes, side, pieces,
    );
}

/// The low-rank values of `parts`, starting with adapter `first_lane`.
///
/// A cube has some rows and iterates over tiles of columns. Warps that share 16 rows split each
/// tile's depth by fragments, and their sums are added at the end. The next tile is loaded while
/// the previous one is multiplied.
#[cube]
fn walk<X: Float, T: Float, M: Size, N: Size>(
    x: &[Vector<X, M>],
    factors: &[Vector<T, N>],
    // The input in the products' dtype, if it has another one.
    narrow: &mut [Vector<T, N>],
    lows: &mut [Vector<T, N>],
    parts: &Sequence<Part>,
    first_lane: usize,
    rows: u32,
    x_pitch: u32,
    #[comptime] sizes: KernelSizes,
    #[comptime] side: Side,
    // Vectors of `x` per eight-element vector.
    #[comptime] pieces: usize,
) {
    let lanes = comptime!(side.lanes(sizes));
    let copies = comptime!(side.copies(sizes));
    let columns = comptime!(sizes.columns / VECTOR);
    let tile_pitch = comptime!(pitch(sizes.columns));
    let copy_size = comptime!(sizes.rows * pitch(sizes.columns));
    let sharing = comptime!(sharing(sizes));
    let own = comptime!(sizes.columns / VECTOR / sharing);
    let own_factors = comptime!(side.vectors_per_unit(sizes));
    let tile_rows = comptime!(Rows {
        sharing,
        own,
        pitch: tile_pitch,
        copy: copy_size,
    });
    let row = UNIT_POS as usize / sharing;
    let lane_in_row = UNIT_POS as usize % sharing;
    let token = CUBE_POS_X as usize * sizes.rows + row;
    let rows = rows as usize;

    let mut tile =
        Shared::<[Vector<T, N>]>::new_aligned_slice(comptime!(copies * copy_size), ALIGNMENT);
    let mut factor_tile =
        Shared::<[Vector<T, N>]>::new_aligned_slice(comptime!(side.factors(sizes)), ALIGNMENT);

    let width = parts.index(0).width as usize;
    let from = token * x_pitch as usize + parts.index(0).first as usize;

    let mut next_vectors = Array::<Vector<T, N>>::new(own);
    let mut next_factors = Array::<Vector<T, N>>::new(comptime!(lanes * own_factors));
    let sums = zero_sums(comptime!(lanes * sizes.fragments));
    let mut first = 0usize.runtime();
    // One iteration more than there are tiles: the first one only loads.
    let mut is_read = false.runtime();
    while first < width || is_read {
        if is_read {
            // Wait until no warp uses the previous tile.
            sync_cube();
            let is_plain = comptime!(side == Side::Outputs);
            store_tile::<T, N>(
                &next_vectors,
                parts,
                &mut tile,
                token,
                first - columns,
                tile_rows,
                sizes,
                is_plain,
            );
            store_factors::<T, N>(&next_factors, &mut factor_tile, sizes, side);
            sync_cube();
        }
        if first < width {
            #[unroll]
            for v in 0..own {
                let column = first + lane_in_row + comptime!(v * sharing);
                let mut value = Vector::<T, N>::cast_from(0.0f32);
                if token < rows && column < width {
                    let index = from + column;
                    #[unroll]
                    for piece in 0..pieces {
                        let loaded = Vector::<T, M>::cast_from(x[index * pieces + piece]);
                        #[unroll]
                        for e in 0..comptime!(VECTOR / pieces) {
                            value.insert(
                                comptime!(piece * (VECTOR / pieces) + e),
                                loaded.extract(e),
                            );
                        }
                    }
                    if comptime!(pieces > 1) {
                        narrow[index] = value;
                    }
                }
                next_vectors[v] = value;
            }
            read_factors::<T, N>(factors, parts, first, &mut next_factors, sizes, side);
        }
        if is_read {
            add_tile::<T, N>(&tile, &factor_tile, &sums, sizes, side);
        }
        is_read = first < width;
        first += columns;
    }

    write::<T, N>(&sums, parts, first_lane, rows, lows, sizes, side);
}

/// Loads a unit's part of the factor tile for the columns that start at vector `first`.
#[cube]
fn read_factors<T: Float, N: Size>(
    factors: &[Vector<T, N>],
    parts: &Sequence<Part>,
    first: usize,
    next_factors: &mut Array<Vector<T, N>>,
    #[comptime] sizes: KernelSizes,
    #[comptime] side: Side,
) {
    let own = comptime!(side.vectors_per_unit(sizes));
    #[unroll]
    for lane in 0..comptime!(side.lanes(sizes)) {
        #[unroll]
        for v in 0..own {
            next_factors[comptime!(lane * own + v)] = factor_vector::<T, N>(
                factors,
                parts.index(lane),
                first,
                UNIT_POS as usize + comptime!(v * UNITS),
                sizes,
                side,
            );
        }
    }
}

/// Stores the loaded factors in the tile.
#[cube]
fn store_factors<T: Float, N: Size>(
    next_factors: &Array<Vector<T, N>>,
    tile: &mut Shared<[Vector<T, N>]>,
    #[comptime] sizes: KernelSizes,
    #[comptime] side: Side,
) {
    let own = comptime!(side.vectors_per_unit(sizes));
    let row_vectors = comptime!(match side {
        Side::Inputs => sizes.columns / VECTOR,
        Side::Outputs => sizes.rank_vectors(),
    });
    #[unroll]
    for lane in 0..comptime!(side.lanes(sizes)) {
        #[unroll]
        for v in 0..own {
            let i = UNIT_POS as usize + comptime!(v * UNITS);
            if i < comptime!(sizes.ranks() * sizes.columns / VECTOR) {
                let row = i / row_vectors + comptime!(lane * sizes.ranks());
                let to = row * comptime!(side.pitch(sizes)) + i % row_vectors;
                tile[to] = next_factors[comptime!(lane * own + v)];
            }
        }
    }
}

/// Writes the warps' sums as low-rank values, multiplied by each adapter's scale.
#[cube]
fn write<T: Float, N: Size>(
    sums: &Sequence<Matrix<f32>>,
    parts: &Sequence<Part>,
    first_lane: usize,
    rows: usize,
    lows: &mut [Vector<T, N>],
    #[comptime] sizes: KernelSizes,
    #[comptime] side: Side,
) {
    let splits = comptime!(splits(sizes));
    let unit = UNIT_POS as usize;
    let mut scratch =
        Shared::<[f32]>::new_aligned_slice(comptime!(8 * FRAGMENT_NUMBERS), ALIGNMENT);
    #[unroll]
    for i in 0..comptime!(side.lanes(sizes) * sizes.fragments) {
        let scale = parts.index(comptime!(i / sizes.fragments)).scale;
        sync_cube();
        let warp = unit / 32;
        store(
            &mut scratch,
            warp * FRAGMENT_NUMBERS,
            sums.index(i),
            FRAGMENT_PITCH,
            comptime!(8 * FRAGMENT_NUMBERS),
        );
        sync_cube();
        let row = unit / FRAGMENT_VECTORS;
        let token = CUBE_POS_X as usize * sizes.rows + row;
        if row < sizes.rows && token < rows {
            let half = unit % FRAGMENT_VECTORS;
            let start = row / FRAGMENT * comptime!(splits * FRAGMENT_NUMBERS)
                + row % FRAGMENT * FRAGMENT_PITCH
                + half * VECTOR;
            let mut value = Vector::<f32, N>::new(0.0f32);
            #[unroll]
            for e in 0..VECTOR {
                let mut sum = scratch[start + e];
                #[unroll]
                for split in 1..splits {
                    sum += scratch[start + comptime!(split * FRAGMENT_NUMBERS + e)];
                }
                value.insert(e, sum * scale);
            }
            let to = token * comptime!(sizes.low_vectors())
                + first_lane * comptime!(sizes.rank_vectors())
                + comptime!(i * FRAGMENT_VECTORS)
                + half;
            lows[to] = Vector::<T, N>::cast_from(value);
        }
    }
}

/// Adds the products of a tile to the warp's sums.
#[cube]
fn add_tile<T: Float, N: Size>(
    tile: &Shared<[Vector<T, N>]>,
    factors: &Shared<[Vector<T, N>]>,
    sums: &Sequence<Matrix<f32>>,
    #[comptime] sizes: KernelSizes,
    #[comptime] side: Side,
) {
    let warp = UNIT_POS as usize / 32;
    let tile_pitch = comptime!(pitch(sizes.columns));
    let copy_size = comptime!(sizes.rows * pitch(sizes.columns));
    let tile_extent = comptime!(TileExtent {
        pitch: tile_pitch,
        size: side.copies(sizes) * copy_size
    });
    let factor_pitch = comptime!(side.pitch(sizes));
    let factor_extent = comptime!(TileExtent {
        pitch: factor_pitch,
        size: side.factors(sizes)
    });
    let splits = comptime!(splits(sizes));
    let row = warp / splits * FRAGMENT;
    #[unroll]
    for step in 0..comptime!(sizes.columns / FRAGMENT / splits) {
        let depth = warp % splits + comptime!(splits * step);
        #[unroll]
        for lane in 0..comptime!(side.lanes(sizes)) {
            let copy = comptime!(match side {
                Side::Inputs => sizes.copy_of(lane),
                Side::Outputs => 0,
            });
            let left = fragment::<T, N>(
                tile,
                comptime!(copy * copy_size) + row * tile_pitch + depth * FRAGMENT_VECTORS,
                MatrixIdent::A,
                MatrixLayout::RowMajor,
                tile_extent,
            );
            #[unroll]
            for i in 0..comptime!(sizes.fragments) {
                let (start, layout) = if comptime!(side == Side::Inputs) {
                    let row = comptime!((lane * sizes.fragments + i) * FRAGMENT);
                    let start = comptime!(row * factor_pitch) + depth * FRAGMENT_VECTORS;
                    (start, MatrixLayout::ColMajor)
                } else {
                    let start = depth * comptime!(FRAGMENT * factor_pitch)
                        + comptime!(i * FRAGMENT_VECTORS);
                    (start, MatrixLayout::RowMajor)
                };
                let right = fragment::<T, N>(factors, start, MatrixIdent::B, layout, factor_extent);
                let sum = sums.index(comptime!(lane * sizes.fragments + i));
                cmma::execute(&left, &right, sum, sum);
            }
        }
    }
}
