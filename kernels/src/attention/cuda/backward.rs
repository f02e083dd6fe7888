//! Backward pass of attention on a GPU: probabilities are recomputed from the log-sum-exp of each
//! row, one tile at a time.
//!
//! One kernel computes the gradients of queries, another those of keys and values. A cube of the
//! second kernel iterates over every query head that reads its keys, so no two cubes add to the
//! same address and results are bitwise reproducible (Dao 2023, section 3.1, with the loops of the
//! second kernel only).

use cubecl::prelude::*;

use super::tiles::{
    GradientInputs, SIDE, Tiles, add_products, add_weighted, end_of_keys, heads, is_seen, key_tile,
    load_own, load_scaled, no_products, no_sums, query_tile, store_row,
};

/// Dot products of the rows of `out` and of its gradient, `[n, h]`; subtracted from every score
/// gradient.
#[cube(launch, create_dummy_kernel)]
pub(super) fn dot_rows<T: Float, N: Size>(
    out: &[Vector<T, N>],
    d_out: &[Vector<T, N>],
    dots: &mut [f32],
    rows: u32,
    // Vectors per row.
    width: u32,
    #[define(T)] _dtype: ElemType,
) {
    let row = ABSOLUTE_POS;
    if row < rows as usize {
        let width = width as usize;
        let mut sum = Vector::<f32, N>::new(0.0);
        for i in 0..width {
            let value = Vector::<f32, N>::cast_from(out[row * width + i]);
            sum += value * Vector::<f32, N>::cast_from(d_out[row * width + i]);
        }
        dots[row] = sum.vector_sum();
    }
}

/// Gradient of one tile of queries of one head.
#[cube(launch, create_dummy_kernel)]
pub(super) fn query_gradients<T: Float, N: Size>(
    inputs: &GradientInputs<T, N>,
    d_qkv: &mut [Vector<T, N>],
    #[comptime] tiles: Tiles,
    #[define(T)] _dtype: ElemType,
) {
    let own = comptime!(tiles.own_rows());
    let (h, head, heads, block) = query_tile(&inputs.blocks, &inputs.params, tiles.columns);
    let end = block.end;
    let (qkv, d_out) = (&inputs.qkv, &inputs.d_out);
    let scale = inputs.params.scale;
    let y = (UNIT_POS / SIDE) as usize * own;
    let x = (UNIT_POS % SIDE) as usize;

    let mut queries = Shared::<[Vector<f32, N>]>::new_slice(comptime!(tiles.vectors()));
    let mut d_outs = Shared::<[Vector<f32, N>]>::new_slice(comptime!(tiles.vectors()));
    let mut keys = Shared::<[Vector<f32, N>]>::new_slice(comptime!(tiles.vectors()));
    let mut values = Shared::<[Vector<f32, N>]>::new_slice(comptime!(tiles.vectors()));
    let mut d_scores = Shared::<[f32]>::new_slice(comptime!(tiles.scores()));

    load_own::<T, N>(qkv, &heads.queries, &block, scale, &mut queries, tiles);
    load_own::<T, N>(d_out, &heads.out, &block, 1.0f32, &mut d_outs, tiles);
    let mut sums = no_sums::<N>(tiles);
    let mut log_sum = Array::<f32>::new(own);
    let mut dot = Array::<f32>::new(own);
    #[unroll]
    for i in 0..own {
        // Rows past the end have no keys, and their results are not stored.
        let token = min(block.first + y + i, block.last - 1);
        log_sum[i] = inputs.log_sums[token * h + head];
        dot[i] = inputs.dots[token * h + head];
    }

    let stop = end_of_keys(&block, tiles.rows, tiles.causal);
    let mut tile = block.start;
    while tile < stop {
        load_scaled::<T, N>(qkv, &heads.keys, tile, end, 1.0f32, &mut keys, tiles);
        load_scaled::<T, N>(qkv, &heads.values, tile, end, 1.0f32, &mut values, tiles);
        sync_cube();
        let mut scores = no_products(tiles);
        let mut d_weights = no_products(tiles);
        add_products::<N>(&queries, &keys, &mut scores, tiles);
        add_products::<N>(&d_outs, &values, &mut d_weights, tiles);
        #[unroll]
        for i in 0..own {
            #[unroll]
            for j in 0..own {
                let column = x + comptime!(j * SIDE as usize);
                let mut d_score = 0.0f32;
                if is_seen(block.first + y + i, tile + column, end, tiles.causal) {
                    let weight = (scores[comptime!(i * own + j)] - log_sum[i]).exp();
                    d_score = weight * (d_weights[comptime!(i * own + j)] - dot[i]);
                }
                d_scores[(y + i) * comptime!(tiles.score_pitch()) + column] = d_score;
            }
        }
        sync_cube();
        add_weighted::<N>(&d_scores, &keys, &mut sums, tiles);
        sync_cube();
        tile += tiles.rows;
    }

    #[unroll]
    for i in 0..own {
        let token = block.first + y + i;
        if token < block.last {
            store_row::<T, N>(&sums, i, scale, d_qkv, &heads.queries, token, tiles);
        }
    }
}

/// Gradients of one tile of keys and values of one key/value head.
#[cube(launch, create_dummy_kernel)]
pub(super) fn key_gradients<T: Float, N: Size>(
    inputs: &GradientInputs<T, N>,
    d_qkv: &mut [Vector<T, N>],
    #[comptime] tiles: Tiles,
    #[define(T)] _dtype: ElemType,
) {
    let own = comptime!(tiles.own_rows());
    let (group, fixed, block) = key_tile(&inputs.blocks, &inputs.params, tiles.columns);
    let end = block.end;
    let (qkv, d_out) = (&inputs.qkv, &inputs.d_out);
    let scale = inputs.params.scale;
    let y = (UNIT_POS / SIDE) as usize * own;
    let x = (UNIT_POS % SIDE) as usize;

    let mut keys = Shared::<[Vector<f32, N>]>::new_slice(comptime!(tiles.vectors()));
    let mut values = Shared::<[Vector<f32, N>]>::new_slice(comptime!(tiles.vectors()));
    let mut queries = Shared::<[Vector<f32, N>]>::new_slice(comptime!(tiles.vectors()));
    let mut d_outs = Shared::<[Vector<f32, N>]>::new_slice(comptime!(tiles.vectors()));
    // Transposed, one row per key: first the weights, then the score gradients.
    let mut weights = Shared::<[f32]>::new_slice(comptime!(tiles.scores()));

    load_own::<T, N>(qkv, &fixed.keys, &block, 1.0f32, &mut keys, tiles);
    load_own::<T, N>(qkv, &fixed.values, &block, 1.0f32, &mut values, tiles);
    let mut key_sums = no_sums::<N>(tiles);
    let mut value_sums = no_sums::<N>(tiles);

    let mut from = block.start;
    if comptime!(tiles.causal) {
        from = block.first;
    }
    let mut head = group.kv * group.size;
    while head < (group.kv + 1) * group.size {
        let heads = heads(group.h, group.g, head, tiles.columns);
        let mut tile = from;
        while tile < end {
            load_scaled::<T, N>(qkv, &heads.queries, tile, end, scale, &mut queries, tiles);
            load_scaled::<T, N>(d_out, &heads.out, tile, end, 1.0f32, &mut d_outs, tiles);
            sync_cube();
            let mut scores = no_products(tiles);
            let mut d_weights = no_products(tiles);
            add_products::<N>(&keys, &queries, &mut scores, tiles);
            add_products::<N>(&values, &d_outs, &mut d_weights, tiles);
            #[unroll]
            for j in 0..own {
                let column = x + comptime!(j * SIDE as usize);
                let query = tile + column;
                let token = min(query, end - 1);
                let log_sum = inputs.log_sums[token * group.h + head];
                let dot = inputs.dots[token * group.h + head];
                #[unroll]
                for i in 0..own {
                    let mut weight = 0.0f32;
                    if query < end && is_seen(query, block.first + y + i, end, tiles.causal) {
                        weight = (scores[comptime!(i * own + j)] - log_sum).exp();
                    }
                    weights[(y + i) * comptime!(tiles.score_pitch()) + column] = weight;
                    let d_weight = d_weights[comptime!(i * own + j)];
                    scores[comptime!(i * own + j)] = weight * (d_weight - dot);
                }
            }
            sync_cube();
            add_weighted::<N>(&weights, &d_outs, &mut value_sums, tiles);
            sync_cube();
            #[unroll]
            for i in 0..own {
                #[unroll]
                for j in 0..own {
                    let column = x + comptime!(j * SIDE as usize);
                    weights[(y + i) * comptime!(tiles.score_pitch()) + column] =
                        scores[comptime!(i * own + j)];
                }
            }
            sync_cube();
            add_weighted::<N>(&weights, &queries, &mut key_sums, tiles);
            sync_cube();
            tile += tiles.rows;
        }
        head += 1;
    }

    #[unroll]
    for i in 0..own {
        let token = block.first + y + i;
        if token < block.last {
            store_row::<T, N>(&key_sums, i, 1.0f32, d_qkv, &fixed.keys, token, tiles);
            store_row::<T, N>(&value_sums, i, 1.0f32, d_qkv, &fixed.values, token, tiles);
        }
    }
}

/// Bytes of shared memory per cube, for either kernel.
pub(super) fn shared_bytes(tiles: &Tiles, vector: usize) -> usize {
    (4 * tiles.vectors() * vector + tiles.scores()) * size_of::<f32>()
}
