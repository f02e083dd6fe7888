//! Attention over packed documents and over a cache, and the head with its loss.

use std::hint::black_box;

use burn::tensor::{Device, Tensor};
use tooltune_kernels::attention::{Causality, Columns, Documents, attention, decode, empty_cache};
use tooltune_kernels::backward_with_gradient::backward_with_gradient;
use tooltune_kernels::linear_cross_entropy::linear_cross_entropy;
use tooltune_kernels::{FrozenWeight, Supervision};

use crate::inputs::{Precision, cold_copies, floats, leaf, random, shape};
use crate::{Prepare, Run};

pub(crate) const OPERATIONS: &[(&str, Prepare)] = &[
    ("attention", attended),
    ("attention_both", attended_both),
    ("attention_decode_cold", decoded_cold),
    ("cross_entropy_both", loss),
];

/// Logits alive at a time: 128 rows of SmolLM2's vocabulary.
const CHUNK_ROWS: usize = 128;

/// Queries, keys and values, the number of query heads and the borders of equal documents; shape
/// `documents length heads key_value_heads head_size`.
fn packed(
    precision: Precision,
    numbers: &[usize],
) -> Result<(Tensor<3>, usize, Documents), String> {
    let [documents, length, h, g, c] = shape(numbers)?;
    let n = documents * length;
    let borders: Vec<usize> = (0..=documents).map(|i| i * length).collect();
    let qkv = random([n, h + 2 * g, c]).cast(precision.dtype());
    Ok((qkv, h, Documents::new(&borders, n)))
}

fn attended(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    let (qkv, h, documents) = packed(precision, numbers)?;
    Ok(Run::new(move || {
        black_box(attention(qkv.clone(), h, &documents, Causality::Causal));
    }))
}

fn attended_both(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    let (qkv, h, documents) = packed(precision, numbers)?;
    let dy = qkv.clone().narrow(1, 0, h).mul_scalar(1.0);
    Ok(Run::new(move || {
        let qkv = leaf(&qkv);
        let y = attention(qkv.clone(), h, &documents, Causality::Causal);
        let found = backward_with_gradient(y, dy.clone());
        black_box(qkv.grad(&found));
    }))
}

/// One query a row to another cache each time, as in decoding: all layers' weights and caches are
/// read between two uses of one. Shape `rows columns heads key_value_heads head_size`.
fn decoded_cold(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    let [rows, columns, h, g, c] = shape(numbers)?;
    let qkv = random([rows, h + 2 * g, c]).cast(precision.dtype());
    let dims = [rows, g, columns, c];
    let of_cache = || {
        let empty = empty_cache(dims, precision.dtype(), &Device::flex());
        empty.slice_assign(dims.map(|n| 0..n), random(dims).cast(precision.dtype()))
    };
    let cache_bytes = 2 * rows * g * columns * c * precision.dtype().size();
    let caches: Vec<[Tensor<4>; 2]> = (0..cold_copies(cache_bytes))
        .map(|_| [of_cache(), of_cache()])
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

/// The loss of supervised rows and the gradient of their hidden states; shape `rows hidden vocabulary`.
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
        let found = linear_cross_entropy(hidden.clone(), &head, &supervision, scale, CHUNK_ROWS);
        black_box(found.d_hidden);
    }))
}
