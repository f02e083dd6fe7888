//! Forward pass of attention on a GPU: one cube per tile of queries of one head, which iterates
//! over the tiles of keys that its queries attend to.
//!
//! Scores never leave the cube: the sum of exponentials and the weighted sum of values are relative
//! to the largest score so far, and rescaled when a larger one is found (Dao et al. 2022, algorithm
//! 1).

use cubecl::prelude::*;

use super::tiles::{
    SIDE, Tiles, add_products, add_weighted, heads, is_seen, load, no_products, no_sums, own_block,
    store_row,
};

/// Lower than every finite score; its exponential is zero relative to any of them.
pub(super) const LOWEST: f32 = -3.0e38;

#[cube(launch, create_dummy_kernel)]
pub(super) fn attend<T: Float, N: Size>(
    qkv: &[Vector<T, N>],
    // For each tile of queries: start and end of the document, first row, end of the rows.
    blocks: &[u32],
    out: &mut [Vector<T, N>],
    log_sums: &mut [f32],
    // Numbers of query heads and of key/value heads.
    h: u32,
    g: u32,
    scale: f32,
    #[comptime] tiles: Tiles,
    #[define(T)] _dtype: ElemType,
) {
    let own = comptime!(tiles.own_rows());
    let columns = comptime!(tiles.columns);
    let rows = comptime!(tiles.rows);
    let h = h as usize;
    let g = g as usize;
    let head = CUBE_POS_Y as usize;
    let heads = heads(h, g, head, columns);
    let block = own_block(blocks);
    let start = block.start;
    let end = block.end;
    let first = block.first;
    let last = block.last;

    let mut queries = Shared::<[Vector<f32, N>]>::new_slice(comptime!(tiles.vectors()));
    let mut keys = Shared::<[Vector<f32, N>]>::new_slice(comptime!(tiles.vectors()));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(tiles.scores()));
    let mut maxima = Shared::<[f32]>::new_slice(comptime!(tiles.partials()));
    let y = (UNIT_POS / SIDE) as usize * own;
    let x = (UNIT_POS % SIDE) as usize;

    let mut sums = no_sums::<N>(tiles);
    let mut maximum = Array::<f32>::new(own);
    let mut total = Array::<f32>::new(own);
    #[unroll]
    for i in 0..own {
        maximum[i] = f32::new(LOWEST);
        total[i] = 0.0f32;
    }
    load::<T, N>(qkv, &heads.queries, first, last, scale, &mut queries, tiles);

    let mut stop = end;
    if comptime!(tiles.causal) {
        stop = min(end, first + rows);
    }
    let mut tile = start;
    while tile < stop {
        load::<T, N>(qkv, &heads.keys, tile, end, 1.0f32, &mut keys, tiles);
        sync_cube();
        let mut scores = no_products(tiles);
        add_products::<N>(&queries, &keys, &mut scores, tiles);
        #[unroll]
        for i in 0..own {
            let mut largest = f32::new(LOWEST);
            #[unroll]
            for j in 0..own {
                let key = tile + x + comptime!(j * SIDE as usize);
                if is_seen(first + y + i, key, end, tiles.causal) {
                    largest = max(largest, scores[comptime!(i * own + j)]);
                }
            }
            maxima[(y + i) * comptime!(SIDE as usize + 1) + x] = largest;
        }
        sync_cube();
        load::<T, N>(qkv, &heads.values, tile, end, 1.0f32, &mut keys, tiles);
        weigh::<N>(
            &maxima,
            &scores,
            &mut weights,
            &mut maximum,
            &mut total,
            &mut sums,
            first,
            tile,
            end,
            tiles,
        );
        sync_cube();
        add_weighted::<N>(&weights, &keys, &mut sums, tiles);
        sync_cube();
        tile += rows;
    }

    // Each unit has the exponentials of its own keys; the partial sums of a row are adjacent.
    #[unroll]
    for i in 0..own {
        maxima[(y + i) * comptime!(SIDE as usize + 1) + x] = total[i];
    }
    sync_cube();
    #[unroll]
    for i in 0..own {
        let token = first + y + i;
        if token < last {
            let mut sum = 0.0f32;
            #[unroll]
            for j in 0..comptime!(SIDE as usize) {
                sum += maxima[(y + i) * comptime!(SIDE as usize + 1) + j];
            }
            let mut factor = 0.0f32;
            let mut log_sum = 0.0f32;
            if start < end {
                factor = 1.0 / sum;
                log_sum = maximum[i] + sum.ln();
            }
            store_row::<T, N>(&sums, i, factor, out, &heads.out, token, tiles);
            if x == 0 {
                log_sums[token * h + head] = log_sum;
            }
        }
    }
}

/// Converts the unit's scores of the tile at `tile` to weights relative to the largest score of
/// each row so far, and rescales the earlier sums accordingly.
#[cube]
fn weigh<N: Size>(
    maxima: &Shared<[f32]>,
    scores: &Array<f32>,
    weights: &mut Shared<[f32]>,
    maximum: &mut Array<f32>,
    total: &mut Array<f32>,
    sums: &mut Array<Vector<f32, N>>,
    first: usize,
    tile: usize,
    end: usize,
    #[comptime] tiles: Tiles,
) {
    let own = comptime!(tiles.own_rows());
    let own_columns = comptime!(tiles.own_columns());
    let y = (UNIT_POS / SIDE) as usize * own;
    let x = (UNIT_POS % SIDE) as usize;
    #[unroll]
    for i in 0..own {
        let mut grown = maximum[i];
        #[unroll]
        for j in 0..comptime!(SIDE as usize) {
            grown = max(grown, maxima[(y + i) * comptime!(SIDE as usize + 1) + j]);
        }
        let correction = (maximum[i] - grown).exp();
        maximum[i] = grown;
        let mut sum = total[i] * correction;
        #[unroll]
        for j in 0..own {
            let column = x + comptime!(j * SIDE as usize);
            let mut weight = 0.0f32;
            if is_seen(first + y + i, tile + column, end, tiles.causal) {
                weight = (scores[comptime!(i * own + j)] - grown).exp();
            }
            sum += weight;
            weights[(y + i) * comptime!(tiles.score_pitch()) + column] = weight;
        }
        total[i] = sum;
        #[unroll]
        for j in 0..own_columns {
            let corrected =
                sums[comptime!(i * own_columns + j)] * Vector::<f32, N>::new(correction);
            sums[comptime!(i * own_columns + j)] = corrected;
        }
    }
}

/// Bytes of shared memory per cube.
pub(super) fn shared_bytes(tiles: &Tiles, vector: usize) -> usize {
    2 * tiles.vectors() * vector * size_of::<f32>()
        + (tiles.scores() + tiles.partials()) * size_of::<f32>()
}
