//! What the kernels of the low-rank products share: how a cube is divided, what it is compiled for, and
//! fragments of the matrix units.

use cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;

use crate::cube::fragments::zeros;
pub(super) use crate::cube::fragments::{ALIGNMENT, FRAGMENT};
use crate::dropout::cuda::{kept_of, row_key};

/// Units of a cube: eight warps.
pub(super) const UNITS: usize = 256;

/// Elements of a vector, 16 bytes.
pub(super) const VECTOR: usize = 8;

/// Vectors of a fragment's row.
pub(super) const FRAGMENT_VECTORS: usize = FRAGMENT / VECTOR;

/// Registers of a vector, and of a unit's part of a fragment of sums.
pub(super) const VECTOR_REGISTERS: usize = 4;
pub(super) const SUM_REGISTERS: usize = FRAGMENT * FRAGMENT / 32;

/// Numbers from one row of a fragment that lies in shared memory to the next.
pub(super) const FRAGMENT_PITCH: usize = FRAGMENT + 4;

/// Numbers of such a fragment.
pub(super) const FRAGMENT_NUMBERS: usize = FRAGMENT * FRAGMENT_PITCH;

/// One adapter of a stack, as kernels read it. Places are in vectors.
#[derive(CubeLaunch, CubeType, Clone, Copy)]
pub(super) struct Part {
    /// Its first column of the matrix that is read or written.
    pub(super) first: u32,
    /// Its columns of that matrix.
    pub(super) width: u32,
    /// Where its factor begins.
    pub(super) factor: u32,
    /// Vectors of its rank.
    pub(super) rank: u32,
    /// Of its dropout.
    pub(super) state_low: u32,
    pub(super) state_high: u32,
    /// In units of 1/65536; 0 keeps everything.
    pub(super) threshold: u32,
    /// What its low-rank values are multiplied with.
    pub(super) scale: f32,
}

/// What a kernel is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Adapters.
    pub(super) parts: usize,
    /// Fragments that the low-rank values of each adapter take; what its rank leaves of them is zero.
    pub(super) fragments: usize,
    /// Adapters that drop some of what they read, a bit each.
    pub(super) masks: u32,
    /// Rows and columns of a tile of what low-rank values are made of: a cube has 16 or 64 rows.
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Rows of a tile of what gradients of factors are made of.
    pub(super) gradient_rows: usize,
}

impl Form {
    /// Of so many adapters of so many fragments each, which drop by `masks`, with tiles of such rows, columns,
    /// and rows for gradients.
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

    /// Low-rank values of an adapter.
    pub(super) fn ranks(&self) -> usize {
        self.fragments * FRAGMENT
    }

    /// The same in vectors.
    pub(super) fn rank_vectors(&self) -> usize {
        self.fragments * FRAGMENT_VECTORS
    }

    /// Vectors of the low-rank values of a row.
    pub(super) fn low_vectors(&self) -> usize {
        self.parts * self.rank_vectors()
    }

    /// Whether an adapter drops some of what it reads.
    pub(super) fn is_masked(&self, part: usize) -> bool {
        self.masks >> part & 1 == 1
    }

    /// What of a tile is held: as each masked adapter sees it, and as the others do.
    pub(super) fn copies(&self) -> usize {
        let masked = self.masks.count_ones() as usize;
        masked + usize::from(masked < self.parts)
    }

    /// Which of them an adapter reads.
    pub(super) fn copy_of(&self, part: usize) -> usize {
        let before = self.masks & ((1 << part) - 1);
        if self.is_masked(part) {
            before.count_ones() as usize
        } else {
            self.copies() - 1
        }
    }

    /// The adapter for which a copy is made.
    pub(super) fn reader_of(&self, copy: usize) -> usize {
        (0..self.parts)
            .find(|&part| self.copy_of(part) == copy)
            .unwrap_or(0)
    }
}

/// Vectors from one row of a tile in shared memory to the next: rows begin in different banks.
pub(super) const fn pitch(columns: usize) -> usize {
    columns / VECTOR + 1
}

/// `count` fragments of sums, at zero.
#[cube]
pub(super) fn no_sums(#[comptime] count: usize) -> Sequence<Matrix<f32>> {
    let mut sums = Sequence::<Matrix<f32>>::new();
    #[unroll]
    for _ in 0..count {
        sums.push(zeros());
    }
    sums
}

/// The fragment of a tile that begins with vector `start`; with `ident` says which side of a product it is.
#[cube]
pub(super) fn fragment<T: Float, N: Size>(
    tile: &Shared<[Vector<T, N>]>,
    start: usize,
    #[comptime] ident: MatrixIdent,
    #[comptime] layout: MatrixLayout,
    // Vectors from row to row, and of the tile.
    #[comptime] pitch: usize,
    #[comptime] size: usize,
) -> Matrix<Vector<T, N>> {
    Matrix::<Vector<T, N>>::from_slice(
        ident,
        FRAGMENT,
        FRAGMENT,
        FRAGMENT,
        layout,
        &tile[start..size],
        comptime!((pitch * VECTOR) as u32),
    )
}

/// Writes a fragment of sums into `to`, from `start` on.
#[cube]
pub(super) fn store(
    to: &mut Shared<[f32]>,
    start: usize,
    sums: &Matrix<f32>,
    // Numbers from row to row, and of all that is there.
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
pub(super) fn chosen(parts: &Sequence<Part>, at: u32, #[comptime] count: usize) -> Part {
    let mut first = parts.index(0).first;
    let mut width = parts.index(0).width;
    let mut factor = parts.index(0).factor;
    let mut rank = parts.index(0).rank;
    let mut scale = parts.index(0).scale;
    #[unroll]
    for part in 1..count {
        if at == comptime!(part as u32) {
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

/// What an adapter sees of a vector that begins with column `first` of a row.
#[cube]
pub(super) fn seen<T: Float, N: Size>(
    value: Vector<T, N>,
    part: &Part,
    row: usize,
    first: usize,
) -> Vector<T, N> {
    let key = row_key(row, part.state_low, part.state_high);
    kept_of::<T, N>(value, key.low, key.high, first, part.threshold, VECTOR)
}

/// How the rows of a tile are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Rows {
    /// Units that share a row.
    pub(super) sharing: usize,
    /// Vectors of a unit, so far apart as units share a row.
    pub(super) own: usize,
    /// Vectors from row to row.
    pub(super) pitch: usize,
    /// Vectors of a copy of the tile.
    pub(super) copy: usize,
}

/// Puts what a unit has read of row `row` of a matrix into a tile that begins with vector `first`, once as each
/// adapter with dropout sees it and once for the others; or, where `is_plain`, as it is.
#[cube]
pub(super) fn put<T: Float, N: Size>(
    read: &Array<Vector<T, N>>,
    parts: &Sequence<Part>,
    tile: &mut Shared<[Vector<T, N>]>,
    row: usize,
    first: usize,
    #[comptime] rows: Rows,
    #[comptime] form: Form,
    #[comptime] is_plain: bool,
) {
    let of_tile = UNIT_POS as usize / rows.sharing;
    #[unroll]
    for copy in 0..comptime!(if is_plain { 1 } else { form.copies() }) {
        let reader = comptime!(form.reader_of(copy));
        #[unroll]
        for v in 0..comptime!(rows.own) {
            let column = UNIT_POS as usize % rows.sharing + comptime!(v * rows.sharing);
            let mut value = read[v];
            if comptime!(!is_plain && form.is_masked(reader)) {
                value = seen::<T, N>(value, parts.index(reader), row, (first + column) * VECTOR);
            }
            tile[comptime!(copy * rows.copy) + of_tile * rows.pitch + column] = value;
        }
    }
}
