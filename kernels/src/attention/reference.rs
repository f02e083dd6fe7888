//! Attention in plain tensor operations, one document at a time.

use burn::tensor::{Bool, Device, Tensor, TensorData, activation};

use super::{Causality, Columns, Documents, Queries};
use crate::route::arithmetic;

/// Same contract as [`super::attention`]; f64 inputs are computed in f64.
pub fn attention(
    qkv: Tensor<3>,
    queries: impl Into<Queries>,
    documents: &Documents,
    causality: Causality,
) -> Tensor<3> {
    let queries = queries.into();
    let n_heads = queries.heads;
    let (dtype, device) = (qkv.dtype(), qkv.device());
    let qkv = qkv.cast(arithmetic(dtype));
    let [n_tokens, heads, head_dim] = qkv.dims();
    let n_kv_heads = (heads - n_heads) / 2;
    let scale = queries.scale(head_dim);
    let mut parts: Vec<Tensor<3>> = documents
        .spans()
        .map(|(start, length)| {
            let part = |first: usize, heads: usize| {
                let document = qkv.clone().narrow(0, start, length);
                document.narrow(1, first, heads)
            };
            let k = part(n_heads, n_kv_heads);
            let v = part(n_heads + n_kv_heads, n_kv_heads);
            one_document([part(0, n_heads), k, v], scale, causality)
        })
        .collect();
    let n_real: usize = documents.spans().map(|(_, length)| length).sum();
    if n_real < n_tokens {
        let shape = [n_tokens - n_real, n_heads, head_dim];
        parts.push(Tensor::zeros(shape, (&device, arithmetic(dtype))));
    }
    Tensor::cat(parts, 0).cast(dtype)
}

fn one_document([q, k, v]: [Tensor<3>; 3], scale: f64, causality: Causality) -> Tensor<3> {
    let [length, n_heads, head_dim] = q.dims();
    let n_kv_heads = k.dims()[1];
    let group = n_heads / n_kv_heads;
    // The query heads of a group share their keys. Stacked as rows, they need only one product per
    // key head.
    let q = q
        .reshape([length, n_kv_heads, group, head_dim])
        .permute([1, 2, 0, 3])
        .reshape([n_kv_heads, group * length, head_dim]);
    let keys = k.permute([1, 2, 0]); // [g, c, len]
    let values = v.permute([1, 0, 2]); // [g, len, c]
    let scores = q.matmul(keys).mul_scalar(scale);
    let scores = match mask_scores(length, causality, &values.device()) {
        None => scores,
        Some(masked) => scores
            .reshape([n_kv_heads, group, length, length])
            .mask_fill(
                masked.expand([n_kv_heads, group, length, length]),
                f32::NEG_INFINITY,
            )
            .reshape([n_kv_heads, group * length, length]),
    };
    activation::softmax(scores, 2)
        .matmul(values)
        .reshape([n_kv_heads, group, length, head_dim])
        .permute([2, 0, 1, 3])
        .reshape([length, n_heads, head_dim])
}

/// True if the key is after the query or before the query's window.
fn mask_scores(length: usize, causality: Causality, device: &Device) -> Option<Tensor<4, Bool>> {
    let future = || Tensor::<2, Bool>::tril_mask([length, length], 0, device);
    let masked = match causality {
        Causality::Bidirectional => return None,
        Causality::Causal => future(),
        Causality::Sliding(window) if window >= length => future(),
        Causality::Sliding(window) => {
            let past = Tensor::<2, Bool>::triu_mask([length; 2], 1 - window as i64, device);
            future().bool_or(past)
        }
    };
    Some(masked.unsqueeze())
}

/// Same contract as [`super::decode`]; f64 inputs are computed in f64.
pub fn decode(
    qkv: Tensor<3>,
    queries: impl Into<Queries>,
    keys: &Tensor<4>,
    values: &Tensor<4>,
    columns: Columns<'_>,
) -> Tensor<3> {
    let queries = queries.into();
    let n_heads = queries.heads;
    let dtype = qkv.dtype();
    let inside = arithmetic(dtype);
    let [rows, _, head_dim] = qkv.dims();
    let n_kv_heads = keys.dims()[1];
    let group = n_heads / n_kv_heads;
    let absent: Vec<bool> = columns
        .starts
        .iter()
        .flat_map(|&start| (0..columns.end).map(move |column| column < start))
        .collect();
    let absent = TensorData::new(absent, [rows, 1, 1, columns.end]);
    let absent = Tensor::<4, Bool>::from_data(absent, &qkv.device());
    let [keys, values] =
        [keys, values].map(|cache| cache.clone().narrow(2, 0, columns.end).cast(inside));
    // Masked values may be NaN, and a probability of 0 times NaN is NaN.
    let masked = absent.clone().swap_dims(2, 3);
    let values = values.mask_fill(
        masked.expand([rows, n_kv_heads, columns.end, head_dim]),
        0.0,
    );
    let scores = qkv
        .narrow(1, 0, n_heads)
        .cast(inside)
        .reshape([rows, n_kv_heads, group, head_dim])
        .matmul(keys.swap_dims(2, 3))
        .mul_scalar(queries.scale(head_dim))
        .mask_fill(
            absent.expand([rows, n_kv_heads, group, columns.end]),
            f32::NEG_INFINITY,
        );
    activation::softmax(scores, 3)
        .matmul(values)
        .reshape([rows, n_heads, head_dim])
        .cast(dtype)
}

/// Same contract as [`super::append`].
pub fn append(cache: Tensor<4>, qkv: &Tensor<3>, first_head: usize, column: usize) -> Tensor<4> {
    let [rows, n_kv_heads, _, head_dim] = cache.dims();
    let new = qkv
        .clone()
        .narrow(1, first_head, n_kv_heads)
        .cast(cache.dtype())
        .unsqueeze_dim(2);
    let ranges = [0..rows, 0..n_kv_heads, column..column + 1, 0..head_dim];
    cache.slice_assign(ranges, new)
}
