//! Attention over packed documents and over a KV cache, and the LM head with its loss.

use std::hint::black_box;

use burn::tensor::{Device, Tensor};
use tooltune_kernels::attention::{Causality, Columns, Documents, attention, decode, empty_cache};
use tooltune_kernels::backward_with_gradient::backward_with_gradient;
use tooltune_kernels::linear_cross_entropy::linear_cross_entropy;
use tooltune_kernels::{FrozenWeight, Supervision};

use crate::inputs::{Precision, cold_copies, floats, leaf, random, shape};
use crate::{Prepare, Run};

pub(crate) const OPERATIONS: &[(&str, Prepare)] = &[
    ("attention", attention_forward),
    ("attention_both", attention_both),
    ("attention_decode_cold", decode_cold),
    ("cross_entropy_both", loss),
];

/// Rows whose logits, of SmolLM2's vocabulary, are in memory at a time.
const CHUNK_ROWS: usize = 128;

/// Queries, keys and values, the number of query heads, and the borders of documents of equal
/// length; shape `documents length heads key_value_heads head_size`.
fn packed_inputs(
    precision: Precision,
    numbers: &[usize],
) -> Result<(Tensor<3>, usize, Documents), String> {
    let [documents, length, h, g, c] = shape(numbers)?;
    let n = documents * length;
    let borders: Vec<usize> = (0..=documents).map(|i| i * length).collect();
    let qkv = random([n, h + 2 * g, c]).cast(precision.dtype());
    Ok((qkv, h, Documents::new(&borders, n)))
}

fn attention_forward(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    let (qkv, h, documents) = packed_inputs(precision, numbers)?;
    Ok(Run::new(move || {
        black_box(attention(qkv.clone(), h, &documents, Causality::Causal));
    }))
}

fn attention_both(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    let (qkv, h, documents) = packed_inputs(precision, numbers)?;
    let dy = qkv.clone().narrow(1, 0, h).mul_scalar(1.0);
    Ok(Run::new(move || {
        let qkv = leaf(&qkv);
        let y = attention(qkv.clone(), h, &documents, Causality::Causal);
        let grads = backward_with_gradient(y, dy.clone());
        black_box(qkv.grad(&grads));
    }))
}

/// One query per row to a different cache for each call: in decoding, all weights and caches are
/// read before a cache is used again. Shape `rows columns heads key_value_heads head_size`.
fn decode_cold(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    let [rows, columns, h, g, c] = shape(numbers)?;
    let qkv = random([rows, h + 2 * g, c]).cast(precision.dtype());
    let dims = [rows, g, columns, c];
    let random_cache = || {
        let empty = empty_cache(dims, precision.dtype(), &Device::flex());
        empty.slice_assign(dims.map(|n| 0..n), random(dims).cast(precision.dtype()))
    };
    let cache_bytes = 2 * rows * g * columns * c * precision.dtype().size();
    let caches: Vec<[Tensor<4>; 2]> = (0..cold_copies(cache_bytes))
        .map(|_| [random_cache(), random_cache()])
        .collect();
    let starts = vec![0; rows];
    let mut next = 0;
    Ok(Run::awake(move || {
        next = (next + 1) % caches.len();
        let [keys, values] = &caches[next];
        let columns = Columns {
            starts: &starts,
            end: columns,
        };
        black_box(decode(qkv.clone(), h, keys, values, columns));
    }))
}

/// Loss of supervised rows and gradient of their hidden states; shape `rows hidden vocabulary`.
fn loss(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    let [rows, d, vocabulary] = shape(numbers)?;
    let hidden = random([rows, d]).cast(precision.dtype());
    let values = floats(vocabulary * d);
    let dtype = precision.compute_dtype();
    let head = FrozenWeight::new(values, [vocabulary, d], dtype, &Device::flex());
    let targets: Vec<u32> = (0..rows).map(|i| (i * 97 % vocabulary) as u32).collect();
    let supervision = Supervision::new(&targets, &vec![1.0; rows]);
    let scale = 1.0 / rows as f64;
    Ok(Run::new(move || {
        let losses = linear_cross_entropy(hidden.clone(), &head, &supervision, scale, CHUNK_ROWS);
        black_box(losses.d_hidden);
    }))
}
