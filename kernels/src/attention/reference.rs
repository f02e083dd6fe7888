//! Attention in plain tensor operations, a document at a time.

use burn::tensor::{Bool, Device, Tensor, TensorData, activation};

use super::{Causality, Documents};

/// The contract is [`super::attention`]'s.
pub fn attention(
    q: Tensor<3>,
    k: Tensor<3>,
    v: Tensor<3>,
    documents: &Documents,
    causality: Causality,
) -> Tensor<3> {
    let [_, n_heads, head_dim] = q.dims();
    let device = q.device();
    let mut parts: Vec<Tensor<3>> = documents
        .spans()
        .map(|(start, length)| {
            let part = |x: &Tensor<3>| x.clone().narrow(0, start, length);
            one_document(part(&q), part(&k), part(&v), causality)
        })
        .collect();
    let n_real: usize = documents.spans().map(|(_, length)| length).sum();
    let n_padding = documents.n_tokens() - n_real;
    if n_padding > 0 {
        parts.push(Tensor::zeros(
            [n_padding, n_heads, head_dim],
            (&device, q.dtype()),
        ));
    }
    Tensor::cat(parts, 0)
}

fn one_document(q: Tensor<3>, k: Tensor<3>, v: Tensor<3>, causality: Causality) -> Tensor<3> {
    let [length, n_heads, head_dim] = q.dims();
    let n_kv_heads = k.dims()[1];
    let group = n_heads / n_kv_heads;
    // The heads of a group share their keys: stacked as rows, they are one product per key head.
    let q = q
        .reshape([length, n_kv_heads, group, head_dim])
        .permute([1, 2, 0, 3])
        .reshape([n_kv_heads, group * length, head_dim]);
    let keys = k.permute([1, 2, 0]); // [g, c, len]
    let values = v.permute([1, 0, 2]); // [g, len, c]
    let scores = q.matmul(keys).div_scalar((head_dim as f64).sqrt());
    let scores = match causality {
        Causality::Bidirectional => scores,
        Causality::Causal => scores
            .reshape([n_kv_heads, group, length, length])
            .mask_fill(
                future(length, &device_of(&values)).expand([n_kv_heads, group, length, length]),
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

fn device_of(x: &Tensor<3>) -> Device {
    x.device()
}

/// True where the key lies after the query.
fn future(length: usize, device: &Device) -> Tensor<4, Bool> {
    Tensor::<2, Bool>::tril_mask([length, length], 0, device).unsqueeze()
}

/// The contract is [`super::decode`]'s.
pub fn decode(
    q: Tensor<3>,
    keys: &Tensor<4>,
    values: &Tensor<4>,
    starts: &[usize],
    n_columns: usize,
) -> Tensor<3> {
    let [rows, n_heads, head_dim] = q.dims();
    let n_kv_heads = keys.dims()[1];
    let group = n_heads / n_kv_heads;
    let absent: Vec<bool> = starts
        .iter()
        .flat_map(|&start| (0..n_columns).map(move |column| column < start))
        .collect();
    let absent = TensorData::new(absent, [rows, 1, 1, n_columns]);
    let absent = Tensor::<4, Bool>::from_data(absent, &q.device());
    let keys = keys.clone().narrow(2, 0, n_columns);
    let values = values.clone().narrow(2, 0, n_columns);
    let scores = q
        .reshape([rows, n_kv_heads, group, head_dim])
        .matmul(keys.swap_dims(2, 3))
        .div_scalar((head_dim as f64).sqrt())
        .mask_fill(
            absent.expand([rows, n_kv_heads, group, n_columns]),
            f32::NEG_INFINITY,
        );
    activation::softmax(scores, 3)
        .matmul(values)
        .reshape([rows, n_heads, head_dim])
}
