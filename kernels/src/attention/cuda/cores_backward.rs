//! Backward pass of attention on tensor cores: the same two kernels as the f32 version, with tile
//! products on the tensor cores.

use cubecl::prelude::*;

use super::cores::{
    ALIGNMENT, CoreTiles, QUARTERS, ROWS, UNITS, VECTOR, add_weighted, load, no_sums, score_pitch,
    store, store_products, weight_pitch,
};
use super::tiles::{heads, is_seen, own_block};

/// Gradient of one tile of queries of one head.
#[cube(launch, create_dummy_kernel)]
pub(super) fn query_gradients_on_cores<T: Float, N: Size>(
    qkv: &[Vector<T, N>],
    d_out: &[Vector<T, N>],
    log_sums: &[f32],
    dots: &[f32],
    // For each tile of queries: start and end of the document, first row, end of the rows.
    blocks: &[u32],
    d_qkv: &mut [Vector<T, N>],
    // Numbers of query heads and of key/value heads.
    h: u32,
    g: u32,
    scale: f32,
    #[comptime] tiles: CoreTiles,
    #[define(T)] _dtype: ElemType,
) {
    let own = comptime!(tiles.vectors(ROWS));
    let moving = comptime!(tiles.vectors(tiles.moving));
    let scores = comptime!(tiles.scores());
    let score_pitch = comptime!(score_pitch(tiles.moving));
    let weight_pitch = comptime!(weight_pitch(tiles.moving));
    let columns = comptime!(tiles.columns / VECTOR);
    let h = h as usize;
    let g = g as usize;
    let head = CUBE_POS_Y as usize;
    let heads = heads(h, g, head, columns);
    let block = own_block(blocks);
    let start = block.start;
    let end = block.end;
    let first = block.first;
    let last = block.last;

    let mut queries = Shared::<[Vector<T, N>]>::new_aligned_slice(own, ALIGNMENT);
    let mut d_outs = Shared::<[Vector<T, N>]>::new_aligned_slice(own, ALIGNMENT);
    let mut keys = Shared::<[Vector<T, N>]>::new_aligned_slice(moving, ALIGNMENT);
    let mut values = Shared::<[Vector<T, N>]>::new_aligned_slice(moving, ALIGNMENT);
    let mut d_weights = Shared::<[f32]>::new_aligned_slice(scores, ALIGNMENT);
    let mut scores = Shared::<[f32]>::new_aligned_slice(scores, ALIGNMENT);
    let mut d_scores = Shared::<[T]>::new_aligned_slice(comptime!(ROWS * weight_pitch), ALIGNMENT);

    let row = UNIT_POS as usize / QUARTERS;
    let quarter = UNIT_POS as usize % QUARTERS;
    let query = first + row;
    // Results of rows past the end are not stored, so their values do not matter.
    let token = min(query, last - 1);
    let log_sum = log_sums[token * h + head];
    let dot = dots[token * h + head];
    load::<T, N>(qkv, &heads.queries, first, last, &mut queries, ROWS, tiles);
    load::<T, N>(d_out, &heads.out, first, last, &mut d_outs, ROWS, tiles);
    let mut stop = end;
    if comptime!(tiles.causal) {
        stop = min(end, first + ROWS);
    }

    let sums = no_sums(tiles);
    let mut tile = start;
    while tile < stop {
        load::<T, N>(qkv, &heads.keys, tile, end, &mut keys, tiles.moving, tiles);
        load::<T, N>(
            qkv,
            &heads.values,
            tile,
            end,
            &mut values,
            tiles.moving,
            tiles,
        );
        sync_cube();
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
        first,
        last,
        tiles,
    );
}

/// Gradients of one tile of keys and values of one key/value head.
#[cube(launch, create_dummy_kernel)]
pub(super) fn key_gradients_on_cores<T: Float, N: Size>(
    qkv: &[Vector<T, N>],
    d_out: &[Vector<T, N>],
    log_sums: &[f32],
    dots: &[f32],
    // For each tile of keys: start and end of the document, first row, end of the rows.
    blocks: &[u32],
    d_qkv: &mut [Vector<T, N>],
    // Numbers of query heads and of key/value heads.
    h: u32,
    g: u32,
    scale: f32,
    #[comptime] tiles: CoreTiles,
    #[define(T)] _dtype: ElemType,
) {
    let own = comptime!(tiles.vectors(ROWS));
    let moving = comptime!(tiles.vectors(tiles.moving));
    let scores = comptime!(tiles.scores());
    let score_pitch = comptime!(score_pitch(ROWS));
    let weight_pitch = comptime!(weight_pitch(ROWS));
    let columns = comptime!(tiles.columns / VECTOR);
    let h = h as usize;
    let g = g as usize;
    let kv = CUBE_POS_Y as usize;
    let group = h / g;
    let fixed = heads(h, g, kv * group, columns);
    let block = own_block(blocks);
    let start = block.start;
    let end = block.end;
    let first = block.first;
    let last = block.last;

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
    load::<T, N>(qkv, &fixed.keys, first, last, &mut keys, ROWS, tiles);
    load::<T, N>(qkv, &fixed.values, first, last, &mut values, ROWS, tiles);
    let mut from = start;
    if comptime!(tiles.causal) {
        from = first;
    }

    let key_sums = no_sums(tiles);
    let value_sums = no_sums(tiles);
    let mut head = kv * group;
    while head < (kv + 1) * group {
        let heads = heads(h, g, head, columns);
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
                d_out,
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
            let log_sum = log_sums[token * h + head];
            let dot = dots[token * h + head];
            #[unroll]
            for j in 0..comptime!(ROWS / sharing) {
                let column = share + comptime!(j * sharing);
                let mut weight = 0.0f32;
                if query < end && is_seen(query, first + column, end, tiles.causal) {
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
        first,
        last,
        tiles,
    );
    store::<T, N>(
        &value_sums,
        1.0f32,
        &mut scores,
        d_qkv,
        &fixed.values,
        first,
        last,
        tiles,
    );
}

/// Bytes of shared memory per cube of the larger kernel, for two-byte elements.
pub(super) fn shared_bytes(tiles: &CoreTiles) -> usize {
    let rows = 2 * (tiles.vectors(ROWS) + tiles.vectors(tiles.moving));
    let weights = tiles.moving * weight_pitch(ROWS) * 2;
    rows * 16 + 2 * (tiles.scores() * 4 + weights)
}
