//! Forward pass of attention on tensor cores, in two passes over the keys: the first sums the
//! exponentials of each row, the second adds the values with their final weights.

use cubecl::prelude::*;

use super::cores::{
    ALIGNMENT, CoreTiles, QUARTERS, ROWS, VECTOR, add_weighted, load, load_keys_and_values,
    load_own, no_sums, score_pitch, store, store_products, weight_pitch,
};
use super::forward::LOWEST;
use super::tiles::{ForwardInputs, end_of_keys, is_seen, query_tile};

#[cube(launch, create_dummy_kernel)]
pub(super) fn attend_on_cores<T: Float, N: Size>(
    inputs: &ForwardInputs<T, N>,
    out: &mut [Vector<T, N>],
    log_sums: &mut [f32],
    #[comptime] tiles: CoreTiles,
    #[define(T)] _dtype: ElemType,
) {
    let columns = comptime!(tiles.columns / VECTOR);
    let (h, head, heads, block) = query_tile(&inputs.blocks, &inputs.params, columns);
    let end = block.end;
    let (qkv, scale) = (&inputs.qkv, inputs.params.scale);
    let vectors = comptime!(tiles.vectors(tiles.moving));
    let score_pitch = comptime!(score_pitch(tiles.moving));
    let weight_pitch = comptime!(weight_pitch(tiles.moving));

    let mut queries =
        Shared::<[Vector<T, N>]>::new_aligned_slice(comptime!(tiles.vectors(ROWS)), ALIGNMENT);
    let mut keys = Shared::<[Vector<T, N>]>::new_aligned_slice(vectors, ALIGNMENT);
    let mut values = Shared::<[Vector<T, N>]>::new_aligned_slice(vectors, ALIGNMENT);
    let mut scores = Shared::<[f32]>::new_aligned_slice(comptime!(tiles.scores()), ALIGNMENT);
    let mut weights = Shared::<[T]>::new_aligned_slice(comptime!(ROWS * weight_pitch), ALIGNMENT);
    let mut partials = Shared::<[f32]>::new_slice(comptime!(2 * ROWS * QUARTERS));

    let row = UNIT_POS as usize / QUARTERS;
    let quarter = UNIT_POS as usize % QUARTERS;
    let query = block.first + row;
    load_own::<T, N>(qkv, &heads.queries, &block, &mut queries, tiles);
    let stop = end_of_keys(&block, ROWS, tiles.causal);

    let mut maximum = f32::new(LOWEST);
    let mut total = 0.0f32;
    let mut tile = block.start;
    while tile < stop {
        load::<T, N>(qkv, &heads.keys, tile, end, &mut keys, tiles.moving, tiles);
        sync_cube();
        store_products::<T, N>(&queries, &keys, &mut scores, ROWS, tiles.moving, tiles);
        sync_cube();
        let mut grown = maximum;
        #[unroll]
        for j in 0..comptime!(tiles.moving / QUARTERS) {
            let column = quarter + comptime!(j * QUARTERS);
            if is_seen(query, tile + column, end, tiles.causal) {
                grown = max(grown, scores[row * score_pitch + column] * scale);
            }
        }
        total *= (maximum - grown).exp();
        maximum = grown;
        #[unroll]
        for j in 0..comptime!(tiles.moving / QUARTERS) {
            let column = quarter + comptime!(j * QUARTERS);
            if is_seen(query, tile + column, end, tiles.causal) {
                total += (scores[row * score_pitch + column] * scale - grown).exp();
            }
        }
        tile += tiles.moving;
    }
    let joined = join_quarters(&mut partials, maximum, total);
    let mut log_sum = 0.0f32;
    if block.start < end {
        log_sum = joined;
    }
    if quarter == 0 && query < block.last {
        log_sums[query * h + head] = log_sum;
    }

    let sums = no_sums(tiles);
    let mut tile = block.start;
    while tile < stop {
        load_keys_and_values::<T, N>(qkv, &heads, tile, end, &mut keys, &mut values, tiles);
        store_products::<T, N>(&queries, &keys, &mut scores, ROWS, tiles.moving, tiles);
        sync_cube();
        #[unroll]
        for j in 0..comptime!(tiles.moving / QUARTERS) {
            let column = quarter + comptime!(j * QUARTERS);
            let mut weight = 0.0f32;
            if is_seen(query, tile + column, end, tiles.causal) {
                weight = (scores[row * score_pitch + column] * scale - log_sum).exp();
            }
            weights[row * weight_pitch + column] = T::cast_from(weight);
        }
        sync_cube();
        add_weighted::<T, N>(&weights, &values, &sums, false, tiles);
        sync_cube();
        tile += tiles.moving;
    }
    store::<T, N>(
        &sums,
        1.0f32,
        &mut scores,
        out,
        &heads.out,
        block.first,
        block.last,
        tiles,
    );
}

/// Log-sum-exp of a row, combined from the units that share it.
#[cube]
fn join_quarters(partials: &mut Shared<[f32]>, maximum: f32, total: f32) -> f32 {
    let row = UNIT_POS as usize / QUARTERS;
    partials[UNIT_POS as usize] = maximum;
    partials[UNIT_POS as usize + comptime!(ROWS * QUARTERS)] = total;
    sync_cube();
    let mut largest = f32::new(LOWEST);
    #[unroll]
    for j in 0..QUARTERS {
        largest = max(largest, partials[row * QUARTERS + j]);
    }
    let mut sum = 0.0f32;
    #[unroll]
    for j in 0..QUARTERS {
        let part = partials[row * QUARTERS + j + comptime!(ROWS * QUARTERS)];
        sum += part * (partials[row * QUARTERS + j] - largest).exp();
    }
    largest + sum.ln()
}

/// Bytes of shared memory per cube, for two-byte elements.
pub(super) fn shared_bytes(tiles: &CoreTiles) -> usize {
    let rows = tiles.vectors(ROWS) + 2 * tiles.vectors(tiles.moving);
    let weights = ROWS * weight_pitch(tiles.moving) * 2;
    rows * 16 + tiles.scores() * 4 + weights + 2 * ROWS * QUARTERS * 4
}
