//! Forward pass of attention on a GPU: one cube per tile of queries of one head, which iterates
//! over the tiles of keys that its queries attend to.
//!
//! Scores never leave the cube: the sum of exponentials and the weighted sum of values are relative
//! to the largest score so far, and rescaled when a larger one is found (Dao et al. 2022, algorithm
//! 1).

use cubecl::prelude::*;

use super::tiles::{
    ForwardInputs, SIDE, Tiles, add_products, add_weighted, end_of_keys, is_seen, load_own,
    load_scaled, no_products, no_sums, query_tile, store_row,
};

/// Lower than every finite score; its exponential is zero relative to any of them.
pub(super) const LOWEST: f32 = -3.0e38;

#[cube(launch, create_dummy_kernel)]
pub(super) fn attend<T: Float, N: Size>(
    inputs: &ForwardInputs<T, N>,
    out: &mut [Vector<T, N>],
    log_sums: &mut [f32],
    #[comptime] tiles: Tiles,
    #[define(T)] _dtype: ElemType,
) {
    let own = comptime!(tiles.own_rows());
    let (h, head, heads, block) = query_tile(&inputs.blocks, &inputs.params, tiles.columns);
    let end = block.end;
    let (qkv, scale) = (&inputs.qkv, inputs.params.scale);

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
    load_own::<T, N>(qkv, &heads.queries, &block, scale, &mut queries, tiles);

    let stop = end_of_keys(&block, tiles.rows, tiles.causal);
    let mut tile = block.start;
    while tile < stop {
        load_scaled::<T, N>(qkv, &heads.keys, tile, end, 1.0f32, &mut keys, tiles);
        sync_cube();
        let mut scores = no_products(tiles);
        add_products::<N>(&queries, &keys, &mut scores, tiles);
        #[unroll]
        for i in 0..own {
            let mut largest = f32::new(LOWEST);
            #[unroll]
            for j in 0..own {
                let key = tile + x + comptime!(j * SIDE as usize);
                if is_seen(block.first + y + i, key, end, tiles.causal) {
                    largest = max(largest, scores[comptime!(i * own + j)]);
                }
            }
            maxima[(y + i) * comptime!(SIDE as usize + 1) + x] = largest;
        }
        sync_cube();
        load_scaled::<T, N>(qkv, &heads.values, tile, end, 1.0f32, &mut keys, tiles);
        weigh::<N>(
            &maxima,
            &scores,
            &mut weights,
            &mut maximum,
            &mut total,
            &mut sums,
            block.first,
            tile,
            end,
            tiles,
        );
        sync_cube();
        add_weighted::<N>(&weights, &keys, &mut sums, tiles);
        sync_cube();
        tile += tiles.rows;
    }

    // Each unit has the exponentials of its own keys; the partial sums of a row are adjacent.
    #[unroll]
    for i in 0..own {
        maxima[(y + i) * comptime!(SIDE as usize + 1) + x] = total[i];
    }
    sync_cube();
    #[unroll]
    for i in 0..own {
        let token = block.first + y + i;
        if token < block.last {
            let mut sum = 0.0f32;
            #[unroll]
            for j in 0..comptime!(SIDE as usize) {
                sum += maxima[(y + i) * comptime!(SIDE as usize + 1) + j];
            }
            let mut factor = 0.0f32;
            let mut log_sum = 0.0f32;
            if block.start < end {
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
