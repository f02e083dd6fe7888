//! Shared code of the low-rank kernels: the division of a cube, compile-time parameters, and
//! tensor-core fragments.

use cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;

use crate::cube::fragments::zeros;
pub(super) use crate::cube::fragments::{ALIGNMENT, FRAGMENT};
use crate::dropout::cuda::{apply_dropout_to_vector, row_key};

/// Units per cube: eight warps.
pub(super) const UNITS: usize = 256;

/// Elements per vector of 16 bytes.
pub(super) const VECTOR: usize = 8;

/// Vectors per fragment row.
pub(super) const FRAGMENT_VECTORS: usize = FRAGMENT / VECTOR;

/// Registers per vector, and per unit's part of an accumulator fragment.
pub(super) const VECTOR_REGISTERS: usize = 4;
pub(super) const SUM_REGISTERS: usize = FRAGMENT * FRAGMENT / 32;

/// Row stride of a fragment in shared memory, in elements.
pub(super) const FRAGMENT_PITCH: usize = FRAGMENT + 4;

/// Elements of such a fragment.
pub(super) const FRAGMENT_NUMBERS: usize = FRAGMENT * FRAGMENT_PITCH;

/// One adapter of a stack, as kernel argument. Positions are in vectors.
#[derive(CubeLaunch, CubeType, Clone, Copy)]
pub(super) struct Part {
    /// First column in the matrix that is read or written.
    pub(super) first: u32,
    /// Number of columns in that matrix.
    pub(super) width: u32,
    /// Start of its factor.
    pub(super) factor: u32,
    /// Rank, in vectors.
    pub(super) rank: u32,
    /// Dropout seed.
    pub(super) state_low: u32,
    pub(super) state_high: u32,
    /// Dropout threshold in units of 1/65536; 0 keeps everything.
    pub(super) threshold: u32,
    /// Scale of the low-rank values.
    pub(super) scale: f32,
}

/// Compile-time parameters of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct KernelSizes {
    /// Number of adapters.
    pub(super) parts: usize,
    /// Fragments per adapter's low-rank values; columns beyond its rank are zero.
    pub(super) fragments: usize,
    /// Bit mask of the adapters with dropout.
    pub(super) masks: u32,
    /// Rows and columns of an input tile of the low-rank values; a cube has 16 or 64 rows.
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Rows of an input tile of the factor gradients.
    pub(super) gradient_rows: usize,
}

impl KernelSizes {
    /// Parameters for some adapters, fragments per adapter and a dropout mask, with tiles of these
    /// rows, columns, and rows for gradients.
    pub(super) fn new(
        [parts, fragments]: [usize; 2],
        masks: u32,
        [rows, columns, gradient_rows]: [usize; 3],
    ) -> Self {
        Self {
            parts,
            fragments,
            masks,
            rows,
            columns,
            gradient_rows,
        }
    }

    /// Low-rank columns per adapter.
    pub(super) fn ranks(&self) -> usize {
        self.fragments * FRAGMENT
    }

    /// Low-rank columns per adapter, in vectors.
    pub(super) fn rank_vectors(&self) -> usize {
        self.fragments * FRAGMENT_VECTORS
    }

    /// Vectors per row of the low-rank values.
    pub(super) fn low_vectors(&self) -> usize {
        self.parts * self.rank_vectors()
    }

    /// Whether an adapter has dropout.
    pub(super) fn is_masked(&self, part: usize) -> bool {
        self.masks >> part & 1 == 1
    }

    /// Copies of a tile in shared memory: one per adapter with dropout, and one for the others.
    pub(super) fn copies(&self) -> usize {
        let masked = self.masks.count_ones() as usize;
        masked + usize::from(masked < self.parts)
    }

    /// Index of the copy that an adapter reads.
    pub(super) fn copy_of(&self, part: usize) -> usize {
        let earlier = self.masks & ((1 << part) - 1);
        if self.is_masked(part) {
            earlier.count_ones() as usize
        } else {
            self.copies() - 1
        }
    }

    /// The adapter that a copy is masked for.
    pub(super) fn part_of_copy(&self, copy: usize) -> usize {
        (0..self.parts)
            .find(|&part| self.copy_of(part) == copy)
            .unwrap_or(0)
    }
}

/// Row stride of a tile in shared memory, in vectors; padded so that rows start in different banks.
pub(super) const fn pitch(columns: usize) -> usize {
    columns / VECTOR + 1
}

/// `count` accumulator fragments, initialised to zero.
#[cube]
pub(super) fn zero_sums(#[comptime] count: usize) -> Sequence<Matrix<f32>> {
    let mut sums = Sequence::<Matrix<f32>>::new();
    #[unroll]
    for _ in 0..count {
        sums.push(zeros());
    }
    sums
}

/// Row stride and size of a tile in shared memory, in vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TileExtent {
    pub(super) pitch: usize,
    pub(super) size: usize,
}

/// The fragment of a tile that starts at vector `start`; `ident` is the side of the product.
#[cube]
pub(super) fn fragment<T: Float, N: Size>(
    tile: &Shared<[Vector<T, N>]>,
    start: usize,
    #[comptime] ident: MatrixIdent,
    #[comptime] layout: MatrixLayout,
    #[comptime] extent: TileExtent,
) -> Matrix<Vector<T, N>> {
    Matrix::<Vector<T, N>>::from_slice(
        ident,
        FRAGMENT,
        FRAGMENT,
        FRAGMENT,
        layout,
        &tile[start..extent.size],
        comptime!((extent.pitch * VECTOR) as u32),
    )
}

/// Writes an accumulator fragment to `to`, starting at `start`.
#[cube]
pub(super) fn store(
    to: &mut Shared<[f32]>,
    start: usize,
    sums: &Matrix<f32>,
    // Row stride and total size, in elements.
    #[comptime] pitch: usize,
    #[comptime] size: usize,
) {
    cmma::store(
        &mut to[start..size],
        sums,
        comptime!(pitch as u32),
        MatrixLayout::RowMajor,
    );
}

/// The adapter that a row of cubes works on.
#[cube]
pub(super) fn select_part(parts: &Sequence<Part>, number: u32, #[comptime] count: usize) -> Part {
    let mut first = parts.index(0).first;
    let mut width = parts.index(0).width;
    let mut factor = parts.index(0).factor;
    let mut rank = parts.index(0).rank;
    let mut scale = parts.index(0).scale;
    #[unroll]
    for part in 1..count {
        if number == comptime!(part as u32) {
            first = parts.index(part).first;
            width = parts.index(part).width;
            factor = parts.index(part).factor;
            rank = parts.index(part).rank;
            scale = parts.index(part).scale;
        }
    }
    Part {
        first,
        width,
        factor,
        rank,
        state_low: comptime!(0u32).runtime(),
        state_high: comptime!(0u32).runtime(),
        threshold: comptime!(0u32).runtime(),
        scale,
    }
}

/// Applies an adapter's dropout to a vector that starts at column `first` of a row.
#[cube]
pub(super) fn apply_dropout<T: Float, N: Size>(
    value: Vector<T, N>,
    part: &Part,
    row: usize,
    first: usize,
) -> Vector<T, N> {
    let key = row_key(row, part.state_low, part.state_high);
    apply_dropout_to_vector::<T, N>(value, key.low, key.high, first, part.threshold, VECTOR)
}

/// Division of a tile's rows between units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Rows {
    /// Units per row.
    pub(super) sharing: usize,
    /// Vectors per unit, at a distance of `sharing`.
    pub(super) own: usize,
    /// Row stride in vectors.
    pub(super) pitch: usize,
    /// Vectors per copy of the tile.
    pub(super) copy: usize,
}

/// Stores a unit's vectors of matrix row `row` in a tile that starts at vector `first`: once masked
/// for each adapter with dropout, and once unmasked for the others; or only unmasked if `is_plain`.
#[cube]
pub(super) fn store_tile<T: Float, N: Size>(
    vectors: &Array<Vector<T, N>>,
    parts: &Sequence<Part>,
    tile: &mut Shared<[Vector<T, N>]>,
    row: usize,
    first: usize,
    #[comptime] rows: Rows,
    #[comptime] sizes: KernelSizes,
    #[comptime] is_plain: bool,
) {
    let row_in_tile = UNIT_POS as usize / rows.sharing;
    #[unroll]
    for copy in 0..comptime!(if is_plain { 1 } else { sizes.copies() }) {
        let reader = comptime!(sizes.part_of_copy(copy));
        #[unroll]
        for v in 0..comptime!(rows.own) {
            let column = UNIT_POS as usize % rows.sharing + comptime!(v * rows.sharing);
            let mut value = vectors[v];
            if comptime!(!is_plain && sizes.is_masked(reader)) {
                value = apply_dropout::<T, N>(
                    value,
                    parts.index(reader),
                    row,
                    (first + column) * VECTOR,
                );
            }
            tile[comptime!(copy * rows.copy) + row_in_tile * rows.pitch + column] = value;
        }
    }
}
