//! Backward pass of attention on tensor cores: the same two kernels as the f32 version, with tile
//! products on the tensor cores.

use cubecl::prelude::*;

use super::cores::{
    ALIGNMENT, CoreTiles, QUARTERS, ROWS, UNITS, VECTOR, add_weighted, load, load_keys_and_values,
    load_own, no_sums, score_pitch, store, store_products, weight_pitch,
};
use super::tiles::{GradientInputs, end_of_keys, heads, is_seen, key_tile, query_tile};

/// Gradient of one tile of queries of one head.
#[cube(launch, create_dummy_kernel)]
pub(super) fn query_gradients_on_cores<T: Float, N: Size>(
    inputs: &GradientInputs<T, N>,
    d_qkv: &mut [Vector<T, N>],
    #[comptime] tiles: CoreTiles,
    #[define(T)] _dtype: ElemType,
) {
    let columns = comptime!(tiles.columns / VECTOR);
    let (h, head, heads, block) = query_tile(&inputs.blocks, &inputs.params, columns);
    let end = block.end;
    let (qkv, d_out) = (&inputs.qkv, &inputs.d_out);
    let scale = inputs.params.scale;
    let own = comptime!(tiles.vectors(ROWS));
    let moving = comptime!(tiles.vectors(tiles.moving));
    let scores = comptime!(tiles.scores());
    let score_pitch = comptime!(score_pitch(tiles.moving));
    let weight_pitch = comptime!(weight_pitch(tiles.moving));

    let mut queries = Shared::<[Vector<T, N>]>::new_aligned_slice(own, ALIGNMENT);
    let mut d_outs = Shared::<[Vector<T, N>]>::new_aligned_slice(own, ALIGNMENT);
    let mut keys = Shared::<[Vector<T, N>]>::new_aligned_slice(moving, ALIGNMENT);
    let mut values = Shared::<[Vector<T, N>]>::new_aligned_slice(moving, ALIGNMENT);
    let mut d_weights = Shared::<[f32]>::new_aligned_slice(scores, ALIGNMENT);
    let mut scores = Shared::<[f32]>::new_aligned_slice(scores, ALIGNMENT);
    let mut d_scores = Shared::<[T]>::new_aligned_slice(comptime!(ROWS * weight_pitch), ALIGNMENT);

    let row = UNIT_POS as usize / QUARTERS;
    let quarter = UNIT_POS as usize % QUARTERS;
    let query = block.first + row;
    // Results of rows past the end are not stored, so their values do not matter.
    let token = min(query, block.last - 1);
    let log_sum = inputs.log_sums[token * h + head];
    let dot = inputs.dots[token * h + head];
    load_own::<T, N>(qkv, &heads.queries, &block, &mut queries, tiles);
    load_own::<T, N>(d_out, &heads.out, &block, &mut d_outs, tiles);
    let stop = end_of_keys(&block, ROWS, tiles.causal);

    let sums = no_sums(tiles);
    let mut tile = block.start;
    while tile < stop {
        load_keys_and_values::<T, N>(qkv, &heads, tile, end, &mut keys, &mut values, tiles);
        store_products::<T, N>(&queries, &keys, &mut scores, ROWS, tiles.moving, tiles);
        store_products::<T, N>(&d_outs, &values, &mut d_weights, ROWS, tiles.moving, tiles);
        sync_cube();
        #[unroll]
        for j in 0..comptime!(tiles.moving / QUARTERS) {
            let column = quarter + comptime!(j * QUARTERS);
            let mut d_score = 0.0f32;
            if is_seen(query, tile + column, end, tiles.causal) {
                let weight = (scores[row * score_pitch + column] * scale - log_sum).exp();
                d_score = weight * (d_weights[row * score_pitch + column] - dot);
            }
            d_scores[row * weight_pitch + column] = T::cast_from(d_score);
        }
        sync_cube();
        add_weighted::<T, N>(&d_scores, &keys, &sums, false, tiles);
        sync_cube();
        tile += tiles.moving;
    }
    store::<T, N>(
        &sums,
        scale,
        &mut scores,
        d_qkv,
        &heads.queries,
        block.first,
        block.last,
        tiles,
    );
}

/// Gradients of one tile of keys and values of one key/value head.
#[cube(launch, create_dummy_kernel)]
pub(super) fn key_gradients_on_cores<T: Float, N: Size>(
    inputs: &GradientInputs<T, N>,
    d_qkv: &mut [Vector<T, N>],
    #[comptime] tiles: CoreTiles,
    #[define(T)] _dtype: ElemType,
) {
    let columns = comptime!(tiles.columns / VECTOR);
    let (group, fixed, block) = key_tile(&inputs.blocks, &inputs.params, columns);
    let end = block.end;
    let scale = inputs.params.scale;
    let own = comptime!(tiles.vectors(ROWS));
    let moving = comptime!(tiles.vectors(tiles.moving));
    let scores = comptime!(tiles.scores());
    let score_pitch = comptime!(score_pitch(ROWS));
    let weight_pitch = comptime!(weight_pitch(ROWS));

    let mut keys = Shared::<[Vector<T, N>]>::new_aligned_slice(own, ALIGNMENT);
    let mut values = Shared::<[Vector<T, N>]>::new_aligned_slice(own, ALIGNMENT);
    let mut queries = Shared::<[Vector<T, N>]>::new_aligned_slice(moving, ALIGNMENT);
    let mut d_outs = Shared::<[Vector<T, N>]>::new_aligned_slice(moving, ALIGNMENT);
    // The rows are queries, so the products read weights by column.
    let mut d_weights = Shared::<[f32]>::new_aligned_slice(scores, ALIGNMENT);
    let mut scores = Shared::<[f32]>::new_aligned_slice(scores, ALIGNMENT);
    let mut weights =
        Shared::<[T]>::new_aligned_slice(comptime!(tiles.moving * weight_pitch), ALIGNMENT);
    let mut d_scores =
        Shared::<[T]>::new_aligned_slice(comptime!(tiles.moving * weight_pitch), ALIGNMENT);

    // Units that share a row of scores, which belongs to one query.
    let sharing = comptime!(UNITS as usize / tiles.moving);
    let row = UNIT_POS as usize / sharing;
    let share = UNIT_POS as usize % sharing;
    let qkv = &inputs.qkv;
    load_own::<T, N>(qkv, &fixed.keys, &block, &mut keys, tiles);
    load_own::<T, N>(qkv, &fixed.values, &block, &mut values, tiles);
    let mut from = block.start;
    if comptime!(tiles.causal) {
        from = block.first;
    }

    let key_sums = no_sums(tiles);
    let value_sums = no_sums(tiles);
    let mut head = group.kv * group.size;
    while head < (group.kv + 1) * group.size {
        let heads = heads(group.h, group.g, head, columns);
        let mut tile = from;
        while tile < end {
            load::<T, N>(
                qkv,
                &heads.queries,
                tile,
                end,
                &mut queries,
                tiles.moving,
                tiles,
            );
            load::<T, N>(
                &inputs.d_out,
                &heads.out,
                tile,
                end,
                &mut d_outs,
                tiles.moving,
                tiles,
            );
            sync_cube();
            store_products::<T, N>(&queries, &keys, &mut scores, tiles.moving, ROWS, tiles);
            store_products::<T, N>(&d_outs, &values, &mut d_weights, tiles.moving, ROWS, tiles);
            sync_cube();
            let query = tile + row;
            let token = min(query, end - 1);
            let log_sum = inputs.log_sums[token * group.h + head];
            let dot = inputs.dots[token * group.h + head];
            #[unroll]
            for j in 0..comptime!(ROWS / sharing) {
                let column = share + comptime!(j * sharing);
                let mut weight = 0.0f32;
                if query < end && is_seen(query, block.first + column, end, tiles.causal) {
                    weight = (scores[row * score_pitch + column] * scale - log_sum).exp();
                }
                let d_weight = d_weights[row * score_pitch + column];
                weights[row * weight_pitch + column] = T::cast_from(weight);
                d_scores[row * weight_pitch + column] = T::cast_from(weight * (d_weight - dot));
            }
            sync_cube();
            add_weighted::<T, N>(&weights, &d_outs, &value_sums, true, tiles);
            add_weighted::<T, N>(&d_scores, &queries, &key_sums, true, tiles);
            sync_cube();
            tile += tiles.moving;
        }
        head += 1;
    }
    store::<T, N>(
        &key_sums,
        scale,
        &mut scores,
        d_qkv,
        &fixed.keys,
        block.first,
        block.last,
        tiles,
    );
    store::<T, N>(
        &value_sums,
        1.0f32,
        &mut scores,
        d_qkv,
        &fixed.values,
        block.first,
        block.last,
        tiles,
    );
}

/// Bytes of shared memory per cube of the larger kernel, for two-byte elements.
pub(super) fn shared_bytes(tiles: &CoreTiles) -> usize {
    let rows = 2 * (tiles.vectors(ROWS) + tiles.vectors(tiles.moving));
    let weights = tiles.moving * weight_pitch(ROWS) * 2;
    rows * 16 + 2 * (tiles.scores() * 4 + weights)
}
