//! Low-rank values of all adapters of a stack: of what they read, which is loaded once for all of them,
//! and of the gradients of their outputs.

use cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;

use super::tiles::{
    ALIGNMENT, FRAGMENT, FRAGMENT_NUMBERS, FRAGMENT_PITCH, FRAGMENT_VECTORS, Form, Part, Rows,
    SUM_REGISTERS, UNITS, VECTOR, VECTOR_REGISTERS, chosen, fragment, no_sums, pitch, put, store,
};

/// Units that share a row.
const fn sharing(form: Form) -> usize {
    UNITS / form.rows
}

/// Warps that share 16 rows: each has every so many-th fragment of a tile in depth.
const fn splits(form: Form) -> usize {
    UNITS / 32 * FRAGMENT / form.rows
}

/// How the factors lie that are multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Side {
    /// A, `[r, in]`: all adapters read the same columns.
    Inputs,
    /// B, `[out, r]`: each adapter reads its own columns; it has cubes of its own.
    Outputs,
}

impl Side {
    /// Adapters of a cube.
    const fn lanes(self, form: Form) -> usize {
        match self {
            Self::Inputs => form.parts,
            Self::Outputs => 1,
        }
    }

    /// Copies of a tile that is read.
    fn copies(self, form: Form) -> usize {
        match self {
            Self::Inputs => form.copies(),
            Self::Outputs => 1,
        }
    }

    /// Vectors from row to row of a tile of factors.
    const fn pitch(self, form: Form) -> usize {
        match self {
            Self::Inputs => pitch(form.columns),
            Self::Outputs => pitch(form.fragments * FRAGMENT),
        }
    }

    /// Vectors of the factors of a tile.
    fn factors(self, form: Form) -> usize {
        match self {
            Self::Inputs => form.parts * form.ranks() * self.pitch(form),
            Self::Outputs => form.columns * self.pitch(form),
        }
    }

    /// Vectors of them that a unit loads for an adapter.
    fn own(self, form: Form) -> usize {
        (form.ranks() * form.columns / VECTOR).div_ceil(UNITS)
    }
}

/// Bytes of shared memory, of elements of two bytes.
pub(super) fn shared_bytes(form: Form, side: Side) -> usize {
    let tiles = side.copies(form) * form.rows * pitch(form.columns) + side.factors(form);
    16 * tiles + 4 * 8 * FRAGMENT_NUMBERS
}

/// Registers of a unit for its sums and for what it has read ahead.
pub(super) fn registers(form: Form, side: Side) -> usize {
    let lanes = side.lanes(form);
    let ahead = form.columns / VECTOR / sharing(form) + lanes * side.own(form);
    VECTOR_REGISTERS * ahead + SUM_REGISTERS * lanes * form.fragments
}

/// A vector of the factors of an adapter: of the tile of columns that begins with vector `tile`, the
/// `i`-th; zeros where there is none.
#[cube]
fn factor_vector<T: Float, N: Size>(
    factors: &[Vector<T, N>],
    part: &Part,
    tile: usize,
    i: usize,
    #[comptime] form: Form,
    #[comptime] side: Side,
) -> Vector<T, N> {
    let mut value = Vector::<T, N>::cast_from(0.0f32);
    if comptime!(side == Side::Inputs) {
        let row = i / comptime!(form.columns / VECTOR);
        let column = tile + i % comptime!(form.columns / VECTOR);
        if row < part.rank as usize * VECTOR && column < part.width as usize {
            value = factors[part.factor as usize + row * part.width as usize + column];
        }
    } else {
        let row = tile * VECTOR + i / comptime!(form.rank_vectors());
        let column = i % comptime!(form.rank_vectors());
        if row < part.width as usize * VECTOR && column < part.rank as usize {
            value = factors[part.factor as usize + row * part.rank as usize + column];
        }
    }
    value
}

/// `lows`, `[n, parts * ranks]`: of each adapter `scale * (what it sees of x) * Aᵀ`.
#[cube(launch, create_dummy_kernel)]
pub(super) fn input_lows<T: Float, N: Size>(
    x: &[Vector<T, N>],
    factors: &[Vector<T, N>],
    // Nothing is written there.
    narrow: &mut [Vector<T, N>],
    lows: &mut [Vector<T, N>],
    parts: Sequence<Part>,
    rows: u32,
    // Vectors from row to row of `x`.
    pitch: u32,
    #[comptime] form: Form,
    #[define(T)] _dtype: ElemType,
) {
    let first = 0usize.runtime();
    let side = comptime!(Side::Inputs);
    walk::<T, T, N, N>(
        x, factors, narrow, lows, &parts, first, rows, pitch, form, side, 1usize,
    );
}

/// `d_lows`, `[n, parts * ranks]`: of each adapter `scale * (its columns of dy) * B`; where `dy` is f32, also
/// its columns in the type of products, which others read.
#[cube(launch, create_dummy_kernel)]
pub(super) fn output_lows<X: Float, T: Float, M: Size, N: Size>(
    dy: &[Vector<X, M>],
    factors: &[Vector<T, N>],
    narrow: &mut [Vector<T, N>],
    d_lows: &mut [Vector<T, N>],
    parts: Sequence<Part>,
    rows: u32,
    // Vectors of eight elements from row to row of `dy`.
    pitch: u32,
    #[comptime] form: Form,
    // Vectors of `dy` in one of eight elements.
    #[comptime] pieces: usize,
    #[define(X)] _given: ElemType,
    #[define(T)] _dtype: ElemType,
) {
    let mut own = Sequence::<Part>::new();
    own.push(chosen(&parts, CUBE_POS_Y, form.parts));
    let first = CUBE_POS_Y as usize;
    let side = comptime!(Side::Outputs);
    walk::<X, T, M, N>(
        dy, factors, narrow, d_lows, &own, first, rows, pitch, form, side, pieces,
    );
}

/// The low-rank values of `parts`, of which `first_lane` is the first.
///
/// A cube has some rows and walks over tiles of columns. A warp has 16 rows, and shares them with others, each
/// with its own fragments of a tile in depth, whose sums meet at the end. What a tile needs is read while the
/// one before it is multiplied.
#[cube]
fn walk<X: Float, T: Float, M: Size, N: Size>(
    x: &[Vector<X, M>],
    factors: &[Vector<T, N>],
    // What was read in the type of products, where it has another one.
    narrow: &mut [Vector<T, N>],
    lows: &mut [Vector<T, N>],
    parts: &Sequence<Part>,
    first_lane: usize,
    rows: u32,
    x_pitch: u32,
    #[comptime] form: Form,
    #[comptime] side: Side,
    // Vectors of `x` in one of eight elements.
    #[comptime] pieces: usize,
) {
    let lanes = comptime!(side.lanes(form));
    let copies = comptime!(side.copies(form));
    let columns = comptime!(form.columns / VECTOR);
    let tile_pitch = comptime!(pitch(form.columns));
    let copy_size = comptime!(form.rows * pitch(form.columns));
    let sharing = comptime!(sharing(form));
    let own = comptime!(form.columns / VECTOR / sharing);
    let own_factors = comptime!(side.own(form));
    let tile_rows = comptime!(Rows {
        sharing,
        own,
        pitch: tile_pitch,
        copy: copy_size,
    });
    let row = UNIT_POS as usize / sharing;
    let place = UNIT_POS as usize % sharing;
    let token = CUBE_POS_X as usize * form.rows + row;
    let rows = rows as usize;

    let mut tile =
        Shared::<[Vector<T, N>]>::new_aligned_slice(comptime!(copies * copy_size), ALIGNMENT);
    let mut factor_tile =
        Shared::<[Vector<T, N>]>::new_aligned_slice(comptime!(side.factors(form)), ALIGNMENT);

    let width = parts.index(0).width as usize;
    let from = token * x_pitch as usize + parts.index(0).first as usize;

    let mut ahead = Array::<Vector<T, N>>::new(own);
    let mut factors_ahead = Array::<Vector<T, N>>::new(comptime!(lanes * own_factors));
    let sums = no_sums(comptime!(lanes * form.fragments));
    let mut first = 0usize.runtime();
    // One turn more than there are tiles: the first one only reads.
    let mut is_read = false.runtime();
    while first < width || is_read {
        if is_read {
            // Nobody multiplies the tile before it any more.
            sync_cube();
            let is_plain = comptime!(side == Side::Outputs);
            put::<T, N>(
                &ahead,
                parts,
                &mut tile,
                token,
                first - columns,
                tile_rows,
                form,
                is_plain,
            );
            put_factors::<T, N>(&factors_ahead, &mut factor_tile, form, side);
            sync_cube();
        }
        if first < width {
            #[unroll]
            for v in 0..own {
                let column = first + place + comptime!(v * sharing);
                let mut value = Vector::<T, N>::cast_from(0.0f32);
                if token < rows && column < width {
                    let at = from + column;
                    #[unroll]
                    for piece in 0..pieces {
                        let given = Vector::<T, M>::cast_from(x[at * pieces + piece]);
                        #[unroll]
                        for e in 0..comptime!(VECTOR / pieces) {
                            value
                                .insert(comptime!(piece * (VECTOR / pieces) + e), given.extract(e));
                        }
                    }
                    if comptime!(pieces > 1) {
                        narrow[at] = value;
                    }
                }
                ahead[v] = value;
            }
            read_factors::<T, N>(factors, parts, first, &mut factors_ahead, form, side);
        }
        if is_read {
            add_tile::<T, N>(&tile, &factor_tile, &sums, form, side);
        }
        is_read = first < width;
        first += columns;
    }

    write::<T, N>(&sums, parts, first_lane, rows, lows, form, side);
}

/// What a unit puts into the tile of factors of the columns that begin with vector `first`.
#[cube]
fn read_factors<T: Float, N: Size>(
    factors: &[Vector<T, N>],
    parts: &Sequence<Part>,
    first: usize,
    ahead: &mut Array<Vector<T, N>>,
    #[comptime] form: Form,
    #[comptime] side: Side,
) {
    let own = comptime!(side.own(form));
    #[unroll]
    for lane in 0..comptime!(side.lanes(form)) {
        #[unroll]
        for v in 0..own {
            ahead[comptime!(lane * own + v)] = factor_vector::<T, N>(
                factors,
                parts.index(lane),
                first,
                UNIT_POS as usize + comptime!(v * UNITS),
                form,
                side,
            );
        }
    }
}

/// Puts it there.
#[cube]
fn put_factors<T: Float, N: Size>(
    ahead: &Array<Vector<T, N>>,
    tile: &mut Shared<[Vector<T, N>]>,
    #[comptime] form: Form,
    #[comptime] side: Side,
) {
    let own = comptime!(side.own(form));
    let row_vectors = comptime!(match side {
        Side::Inputs => form.columns / VECTOR,
        Side::Outputs => form.rank_vectors(),
    });
    #[unroll]
    for lane in 0..comptime!(side.lanes(form)) {
        #[unroll]
        for v in 0..own {
            let i = UNIT_POS as usize + comptime!(v * UNITS);
            if i < comptime!(form.ranks() * form.columns / VECTOR) {
                let row = i / row_vectors + comptime!(lane * form.ranks());
                let to = row * comptime!(side.pitch(form)) + i % row_vectors;
                tile[to] = ahead[comptime!(lane * own + v)];
            }
        }
    }
}

/// Writes the warps' sums as low-rank values, each adapter's times its scale.
#[cube]
fn write<T: Float, N: Size>(
    sums: &Sequence<Matrix<f32>>,
    parts: &Sequence<Part>,
    first_lane: usize,
    rows: usize,
    lows: &mut [Vector<T, N>],
    #[comptime] form: Form,
    #[comptime] side: Side,
) {
    let splits = comptime!(splits(form));
    let unit = UNIT_POS as usize;
    let mut scratch =
        Shared::<[f32]>::new_aligned_slice(comptime!(8 * FRAGMENT_NUMBERS), ALIGNMENT);
    #[unroll]
    for i in 0..comptime!(side.lanes(form) * form.fragments) {
        let scale = parts.index(comptime!(i / form.fragments)).scale;
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
        let token = CUBE_POS_X as usize * form.rows + row;
        if row < form.rows && token < rows {
            let half = unit % FRAGMENT_VECTORS;
            let at = row / FRAGMENT * comptime!(splits * FRAGMENT_NUMBERS)
                + row % FRAGMENT * FRAGMENT_PITCH
                + half * VECTOR;
            let mut value = Vector::<f32, N>::new(0.0f32);
            #[unroll]
            for e in 0..VECTOR {
                let mut sum = scratch[at + e];
                #[unroll]
                for split in 1..splits {
                    sum += scratch[at + comptime!(split * FRAGMENT_NUMBERS + e)];
                }
                value.insert(e, sum * scale);
            }
            let to = token * comptime!(form.low_vectors())
                + first_lane * comptime!(form.rank_vectors())
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
    #[comptime] form: Form,
    #[comptime] side: Side,
) {
    let warp = UNIT_POS as usize / 32;
    let tile_pitch = comptime!(pitch(form.columns));
    let copy_size = comptime!(form.rows * pitch(form.columns));
    let tile_size = comptime!(side.copies(form) * copy_size);
    let factor_pitch = comptime!(side.pitch(form));
    let factor_size = comptime!(side.factors(form));
    let splits = comptime!(splits(form));
    let row = warp / splits * FRAGMENT;
    #[unroll]
    for step in 0..comptime!(form.columns / FRAGMENT / splits) {
        let depth = warp % splits + comptime!(splits * step);
        #[unroll]
        for lane in 0..comptime!(side.lanes(form)) {
            let copy = comptime!(match side {
                Side::Inputs => form.copy_of(lane),
                Side::Outputs => 0,
            });
            let left = fragment::<T, N>(
                tile,
                comptime!(copy * copy_size) + row * tile_pitch + depth * FRAGMENT_VECTORS,
                MatrixIdent::A,
                MatrixLayout::RowMajor,
                tile_pitch,
                tile_size,
            );
            #[unroll]
            for i in 0..comptime!(form.fragments) {
                let (start, layout) = if comptime!(side == Side::Inputs) {
                    let row = comptime!((lane * form.fragments + i) * FRAGMENT);
                    let start = comptime!(row * factor_pitch) + depth * FRAGMENT_VECTORS;
                    (start, MatrixLayout::ColMajor)
                } else {
                    let start = depth * comptime!(FRAGMENT * factor_pitch)
                        + comptime!(i * FRAGMENT_VECTORS);
                    (start, MatrixLayout::RowMajor)
                };
                let right = fragment::<T, N>(
                    factors,
                    start,
                    MatrixIdent::B,
                    layout,
                    factor_pitch,
                    factor_size,
                );
                let sum = sums.index(comptime!(lane * form.fragments + i));
                cmma::execute(&left, &right, sum, sum);
            }
        }
    }
}
