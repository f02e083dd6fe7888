//! Shared code of the attention kernels: tiles in shared memory, and two products of tiles.
//!
//! A cube is a square of 16 × 16 units. For a product of two tiles of `rows` rows, the unit at (y,
//! x) computes the results of `rows / 16` adjacent rows of the first tile and of `rows / 16` rows
//! of the second tile, 16 apart. Adjacent units then read adjacent rows, and the odd row stride
//! puts these in different banks. Arithmetic is f32 for all input dtypes.

use cubecl::prelude::*;

/// Units per side of a cube.
pub(super) const SIDE: u32 = 16;

/// Units per cube.
pub(super) const SQUARE: u32 = SIDE * SIDE;

/// Compile-time sizes of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Tiles {
    /// Queries per tile, and keys per tile: a multiple of 16.
    pub(super) rows: usize,
    /// Vectors per head.
    pub(super) columns: usize,
    /// Whether a query attends only to its own and earlier keys.
    pub(super) causal: bool,
}

impl Tiles {
    /// Rows of a tile whose results a unit computes.
    pub(super) fn own_rows(&self) -> usize {
        self.rows / SIDE as usize
    }

    /// Vectors of a row whose results a unit computes.
    pub(super) fn own_columns(&self) -> usize {
        self.columns.div_ceil(SIDE as usize)
    }

    /// Row stride of a tile, in vectors.
    pub(super) fn pitch(&self) -> usize {
        self.columns + 1
    }

    /// Vectors in a tile of queries, keys, values or gradients.
    pub(super) fn vectors(&self) -> usize {
        self.rows * self.pitch()
    }

    /// Row stride of scores, in elements.
    pub(super) fn score_pitch(&self) -> usize {
        self.rows + 1
    }

    /// Elements in a tile of scores.
    pub(super) fn scores(&self) -> usize {
        self.rows * self.score_pitch()
    }

    /// Elements of one partial result per unit and own row.
    pub(super) fn partials(&self) -> usize {
        self.rows * (SIDE as usize + 1)
    }
}

/// Numbers of heads and the multiplier of scores, as kernel argument.
#[derive(CubeLaunch, CubeType, Clone, Copy)]
pub(super) struct HeadParams {
    /// Number of query heads.
    pub(super) h: u32,
    /// Number of key/value heads.
    pub(super) g: u32,
    /// Multiplier of the scores.
    pub(super) scale: f32,
}

/// Arguments that the kernels of the forward pass read.
#[derive(CubeLaunch, CubeType)]
pub(super) struct ForwardInputs<T: Float, N: Size> {
    pub(super) qkv: Box<[Vector<T, N>]>,
    /// For each tile of queries: start and end of the document, first row, end of the rows.
    pub(super) blocks: Box<[u32]>,
    pub(super) params: HeadParams,
}

/// Arguments that the kernels of the backward pass read.
#[derive(CubeLaunch, CubeType)]
pub(super) struct GradientInputs<T: Float, N: Size> {
    pub(super) qkv: Box<[Vector<T, N>]>,
    pub(super) d_out: Box<[Vector<T, N>]>,
    pub(super) log_sums: Box<[f32]>,
    pub(super) dots: Box<[f32]>,
    /// For each tile of the kernel's side, queries or keys: start and end of the document, first
    /// row, end of the rows.
    pub(super) blocks: Box<[u32]>,
    pub(super) params: HeadParams,
}

/// Rows of one head, and the index of the head's first vector.
#[derive(CubeType)]
pub(super) struct Head {
    /// Index of the first vector of token 0.
    pub(super) offset: usize,
    /// Vectors from one token to the next.
    pub(super) stride: usize,
}

/// Location of a query head and of the key/value heads that it uses.
#[derive(CubeType)]
pub(super) struct Heads {
    pub(super) queries: Head,
    pub(super) keys: Head,
    pub(super) values: Head,
    /// Location in the result, which has only query heads.
    pub(super) out: Head,
}

/// Locations for query head `head` of `h`, with `g` key/value heads of `columns` vectors.
#[cube]
pub(super) fn heads(h: usize, g: usize, head: usize, #[comptime] columns: usize) -> Heads {
    let kv = head / (h / g);
    let stride = (h + 2 * g) * columns;
    Heads {
        queries: Head {
            offset: head * columns,
            stride,
        },
        keys: Head {
            offset: (h + kv) * columns,
            stride,
        },
        values: Head {
            offset: (h + g + kv) * columns,
            stride,
        },
        out: Head {
            offset: head * columns,
            stride: h * columns,
        },
    }
}

/// Rows of a tile, and their document.
#[derive(CubeType)]
pub(super) struct Block {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) first: usize,
    /// End of the rows (exclusive).
    pub(super) last: usize,
}

/// The tile at the cube's first coordinate.
#[cube]
fn own_block(blocks: &[u32]) -> Block {
    let index = CUBE_POS_X as usize * 4;
    Block {
        start: blocks[index] as usize,
        end: blocks[index + 1] as usize,
        first: blocks[index + 2] as usize,
        last: blocks[index + 3] as usize,
    }
}

/// The cube's tile of queries of one head: the number of query heads, the head, its location and
/// the rows.
#[cube]
pub(super) fn query_tile(
    blocks: &[u32],
    params: &HeadParams,
    #[comptime] columns: usize,
) -> (usize, usize, Heads, Block) {
    let h = params.h as usize;
    let g = params.g as usize;
    let head = CUBE_POS_Y as usize;
    let heads = heads(h, g, head, columns);
    let block = own_block(blocks);
    (h, head, heads, block)
}

/// End of the keys that the queries of a tile of `rows` rows attend to.
#[cube]
pub(super) fn end_of_keys(
    block: &Block,
    #[comptime] rows: usize,
    #[comptime] causal: bool,
) -> usize {
    let mut stop = block.end;
    if comptime!(causal) {
        stop = min(block.end, block.first + rows);
    }
    stop
}

/// The query heads that read the cube's key/value head.
#[derive(CubeType)]
pub(super) struct QueryGroup {
    /// Numbers of query heads and of key/value heads.
    pub(super) h: usize,
    pub(super) g: usize,
    /// The key/value head.
    pub(super) kv: usize,
    /// Query heads per key/value head.
    pub(super) size: usize,
}

/// The cube's tile of keys and values of one key/value head: the query heads that read it, the
/// location of the first of them, and the rows.
#[cube]
pub(super) fn key_tile(
    blocks: &[u32],
    params: &HeadParams,
    #[comptime] columns: usize,
) -> (QueryGroup, Heads, Block) {
    let h = params.h as usize;
    let g = params.g as usize;
    let kv = CUBE_POS_Y as usize;
    let size = h / g;
    let fixed = heads(h, g, kv * size, columns);
    let block = own_block(blocks);
    (QueryGroup { h, g, kv, size }, fixed, block)
}

/// Copies the rows of a head starting at `first`, multiplied by `factor`; rows from `last` on are
/// zeros.
#[cube]
pub(super) fn load_scaled<T: Float, N: Size>(
    from: &[Vector<T, N>],
    head: &Head,
    first: usize,
    last: usize,
    factor: f32,
    to: &mut Shared<[Vector<f32, N>]>,
    #[comptime] tiles: Tiles,
) {
    let factor = Vector::<f32, N>::new(factor);
    let columns = comptime!(tiles.columns);
    let mut i = UNIT_POS as usize;
    while i < comptime!(tiles.rows * tiles.columns) {
        let row = i / columns;
        let column = i % columns;
        let token = first + row;
        let mut value = Vector::<f32, N>::new(0.0);
        if token < last {
            value = Vector::<f32, N>::cast_from(from[head.offset + token * head.stride + column]);
        }
        to[row * comptime!(tiles.pitch()) + column] = value * factor;
        i += comptime!(SQUARE as usize);
    }
}

/// [`load_scaled`] for the cube's own tile.
#[cube]
pub(super) fn load_own<T: Float, N: Size>(
    from: &[Vector<T, N>],
    head: &Head,
    block: &Block,
    factor: f32,
    to: &mut Shared<[Vector<f32, N>]>,
    #[comptime] tiles: Tiles,
) {
    load_scaled::<T, N>(from, head, block.first, block.last, factor, to, tiles);
}

/// The unit's part of the result of [`add_products`], initialised to zero.
#[cube]
pub(super) fn no_products(#[comptime] tiles: Tiles) -> Array<f32> {
    let n = comptime!(tiles.own_rows() * tiles.own_rows());
    let mut products = Array::<f32>::new(n);
    #[unroll]
    for i in 0..n {
        products[i] = 0.0f32;
    }
    products
}

/// The unit's part of the result of [`add_weighted`], initialised to zero.
#[cube]
pub(super) fn no_sums<N: Size>(#[comptime] tiles: Tiles) -> Array<Vector<f32, N>> {
    let n = comptime!(tiles.own_rows() * tiles.own_columns());
    let mut sums = Array::<Vector<f32, N>>::new(n);
    #[unroll]
    for i in 0..n {
        sums[i] = Vector::<f32, N>::new(0.0);
    }
    sums
}

/// Adds the products of rows of `a` with rows of `b`: `own_rows` × `own_rows` elements.
#[cube]
pub(super) fn add_products<N: Size>(
    a: &Shared<[Vector<f32, N>]>,
    b: &Shared<[Vector<f32, N>]>,
    sums: &mut Array<f32>,
    #[comptime] tiles: Tiles,
) {
    let own = comptime!(tiles.own_rows());
    let pitch = comptime!(tiles.pitch());
    let y = (UNIT_POS / SIDE) as usize * own;
    let x = (UNIT_POS % SIDE) as usize;
    let mut b_rows = Array::<Vector<f32, N>>::new(own);
    for column in 0..comptime!(tiles.columns) {
        #[unroll]
        for j in 0..own {
            b_rows[j] = b[(x + comptime!(j * SIDE as usize)) * pitch + column];
        }
        #[unroll]
        for i in 0..own {
            let row = a[(y + i) * pitch + column];
            #[unroll]
            for j in 0..own {
                let b_row = b_rows[j];
                let mut sum = sums[comptime!(i * own + j)];
                #[unroll]
                for e in 0..row.vector_size() {
                    sum += row.extract(e) * b_row.extract(e);
                }
                sums[comptime!(i * own + j)] = sum;
            }
        }
    }
}

/// Adds the rows of `rows`, each multiplied by its weight: `own_rows` × `own_columns` vectors.
///
/// The weights of result `i` are row `i` of `weights`.
#[cube]
pub(super) fn add_weighted<N: Size>(
    weights: &Shared<[f32]>,
    rows: &Shared<[Vector<f32, N>]>,
    sums: &mut Array<Vector<f32, N>>,
    #[comptime] tiles: Tiles,
) {
    let own = comptime!(tiles.own_rows());
    let own_columns = comptime!(tiles.own_columns());
    let y = (UNIT_POS / SIDE) as usize * own;
    let mut vectors = Array::<Vector<f32, N>>::new(own_columns);
    for row in 0..comptime!(tiles.rows) {
        #[unroll]
        for j in 0..own_columns {
            vectors[j] = rows[row * comptime!(tiles.pitch()) + existing_column(j, tiles)];
        }
        #[unroll]
        for i in 0..own {
            let weight = weights[(y + i) * comptime!(tiles.score_pitch()) + row];
            let weight = Vector::<f32, N>::new(weight);
            #[unroll]
            for j in 0..own_columns {
                sums[comptime!(i * own_columns + j)] += weight * vectors[j];
            }
        }
    }
}

/// Column of the unit's vector `j`, clamped to the last one.
#[cube]
fn existing_column(#[comptime] j: usize, #[comptime] tiles: Tiles) -> usize {
    let column = (UNIT_POS % SIDE) as usize + comptime!(j * SIDE as usize);
    if comptime!(tiles.columns.is_multiple_of(SIDE as usize)) {
        column
    } else {
        min(column, comptime!(tiles.columns - 1))
    }
}

/// Writes the unit's vectors of row `i`, multiplied by `factor`, to the row of `token`.
#[cube]
pub(super) fn store_row<T: Float, N: Size>(
    sums: &Array<Vector<f32, N>>,
    #[comptime] i: usize,
    factor: f32,
    to: &mut [Vector<T, N>],
    head: &Head,
    token: usize,
    #[comptime] tiles: Tiles,
) {
    let factor = Vector::<f32, N>::new(factor);
    #[unroll]
    for j in 0..comptime!(tiles.own_columns()) {
        let column = (UNIT_POS % SIDE) as usize + comptime!(j * SIDE as usize);
        if column < comptime!(tiles.columns) {
            let value = sums[comptime!(i * tiles.own_columns() + j)] * factor;
            to[head.offset + token * head.stride + column] = Vector::<T, N>::cast_from(value);
        }
    }
}

/// Whether the query at `query` attends to the key at `key` in a document that ends before `end`.
#[cube]
pub(super) fn is_seen(query: usize, key: usize, end: usize, #[comptime] causal: bool) -> bool {
    if comptime!(causal) {
        key <= query && key < end
    } else {
        key < end
    }
}
