//! Backward pass of attention on a GPU: probabilities are recomputed from the log-sum-exp of each
//! row, one tile at a time.
//!
//! One kernel computes the gradients of queries, another those of keys and values. A cube of the
//! second kernel iterates over every query head that reads its keys, so no two cubes add to the
//! same address and results are bitwise reproducible (Dao 2023, section 3.1, with the loops of the
//! second kernel only).

use cubecl::prelude::*;

use super::tiles::{
    SIDE, Tiles, add_products, add_weighted, heads, is_seen, load, no_products, no_sums, own_block,
    store_row,
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
    let y = (UNIT_POS / SIDE) as usize * own;
    let x = (UNIT_POS % SIDE) as usize;

    let mut queries = Shared::<[Vector<f32, N>]>::new_slice(comptime!(tiles.vectors()));
    let mut d_outs = Shared::<[Vector<f32, N>]>::new_slice(comptime!(tiles.vectors()));
    let mut keys = Shared::<[Vector<f32, N>]>::new_slice(comptime!(tiles.vectors()));
    let mut values = Shared::<[Vector<f32, N>]>::new_slice(comptime!(tiles.vectors()));
    let mut d_scores = Shared::<[f32]>::new_slice(comptime!(tiles.scores()));

    load::<T, N>(qkv, &heads.queries, first, last, scale, &mut queries, tiles);
    load::<T, N>(d_out, &heads.out, first, last, 1.0f32, &mut d_outs, tiles);
    let mut sums = no_sums::<N>(tiles);
    let mut log_sum = Array::<f32>::new(own);
    let mut dot = Array::<f32>::new(own);
    #[unroll]
    for i in 0..own {
        // Rows past the end have no keys, and their results are not stored.
        let token = min(first + y + i, last - 1);
        log_sum[i] = log_sums[token * h + head];
        dot[i] = dots[token * h + head];
    }

    let mut stop = end;
    if comptime!(tiles.causal) {
        stop = min(end, first + rows);
    }
    let mut tile = start;
    while tile < stop {
        load::<T, N>(qkv, &heads.keys, tile, end, 1.0f32, &mut keys, tiles);
        load::<T, N>(qkv, &heads.values, tile, end, 1.0f32, &mut values, tiles);
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
                if is_seen(first + y + i, tile + column, end, tiles.causal) {
                    let weight = (scores[comptime!(i * own + j)] - log_sum[i]).exp();
                    d_score = weight * (d_weights[comptime!(i * own + j)] - dot[i]);
                }
                d_scores[(y + i) * comptime!(tiles.score_pitch()) + column] = d_score;
            }
        }
        sync_cube();
        add_weighted::<N>(&d_scores, &keys, &mut sums, tiles);
        sync_cube();
        tile += rows;
    }

    #[unroll]
    for i in 0..own {
        let token = first + y + i;
        if token < last {
            store_row::<T, N>(&sums, i, scale, d_qkv, &heads.queries, token, tiles);
        }
    }
}

/// Gradients of one tile of keys and values of one key/value head.
#[cube(launch, create_dummy_kernel)]
pub(super) fn key_gradients<T: Float, N: Size>(
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
    #[comptime] tiles: Tiles,
    #[define(T)] _dtype: ElemType,
) {
    let own = comptime!(tiles.own_rows());
    let columns = comptime!(tiles.columns);
    let rows = comptime!(tiles.rows);
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
    let y = (UNIT_POS / SIDE) as usize * own;
    let x = (UNIT_POS % SIDE) as usize;

    let mut keys = Shared::<[Vector<f32, N>]>::new_slice(comptime!(tiles.vectors()));
    let mut values = Shared::<[Vector<f32, N>]>::new_slice(comptime!(tiles.vectors()));
    let mut queries = Shared::<[Vector<f32, N>]>::new_slice(comptime!(tiles.vectors()));
    let mut d_outs = Shared::<[Vector<f32, N>]>::new_slice(comptime!(tiles.vectors()));
    // Transposed, one row per key: first the weights, then the score gradients.
    let mut weights = Shared::<[f32]>::new_slice(comptime!(tiles.scores()));

    load::<T, N>(qkv, &fixed.keys, first, last, 1.0f32, &mut keys, tiles);
    load::<T, N>(qkv, &fixed.values, first, last, 1.0f32, &mut values, tiles);
    let mut key_sums = no_sums::<N>(tiles);
    let mut value_sums = no_sums::<N>(tiles);

    let mut from = start;
    if comptime!(tiles.causal) {
        from = first;
    }
    let mut head = kv * group;
    while head < (kv + 1) * group {
        let heads = heads(h, g, head, columns);
        let mut tile = from;
        while tile < end {
            load::<T, N>(qkv, &heads.queries, tile, end, scale, &mut queries, tiles);
            load::<T, N>(d_out, &heads.out, tile, end, 1.0f32, &mut d_outs, tiles);
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
                let log_sum = log_sums[token * h + head];
                let dot = dots[token * h + head];
                #[unroll]
                for i in 0..own {
                    let mut weight = 0.0f32;
                    if query < end && is_seen(query, first + y + i, end, tiles.causal) {
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
            tile += rows;
        }
        head += 1;
    }

    #[unroll]
    for i in 0..own {
        let token = first + y + i;
        if token < last {
            store_row::<T, N>(&key_sums, i, 1.0f32, d_qkv, &fixed.keys, token, tiles);
            store_row::<T, N>(&value_sums, i, 1.0f32, d_qkv, &fixed.values, token, tiles);
        }
    }
}

/// Bytes of shared memory per cube, for either kernel.
pub(super) fn shared_bytes(tiles: &Tiles, vector: usize) -> usize {
    (4 * tiles.vectors() * vector + tiles.scores()) * size_of::<f32>()
}
