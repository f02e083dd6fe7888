//! Attention over packed documents and over a cache, and the head with its loss.

use std::hint::black_box;

use burn::tensor::Tensor;
use tooltune_kernels::Supervision;
use tooltune_kernels::attention::{Causality, Documents, attention, decode};
use tooltune_kernels::linear_cross_entropy::linear_cross_entropy;

use crate::inputs::{Precision, leaf, random, shape};
use crate::{Prepare, Run};

pub(crate) const OPERATIONS: &[(&str, Prepare)] = &[
    ("attention", attended),
    ("attention_both", attended_both),
    ("attention_decode", decoded),
    ("cross_entropy_both", loss),
];

/// Logits alive at a time: 128 rows of SmolLM2's vocabulary.
const CHUNK_ROWS: usize = 128;

/// Queries, keys, values and the borders of equal documents; shape
/// `documents length heads key_value_heads head_size`.
fn packed(numbers: &[usize]) -> Result<([Tensor<3>; 3], Documents), String> {
    let [documents, length, h, g, c] = shape(numbers)?;
    let n = documents * length;
    let borders: Vec<usize> = (0..=documents).map(|i| i * length).collect();
    let inputs = [h, g, g].map(|heads| random([n, heads, c]));
    Ok((inputs, Documents::new(&borders, n)))
}

fn attended(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    precision.f32_only()?;
    let (inputs, documents) = packed(numbers)?;
    Ok(Run::new(move || {
        let [q, k, v] = inputs.clone();
        black_box(attention(q, k, v, &documents, Causality::Causal));
    }))
}

fn attended_both(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    precision.f32_only()?;
    let (inputs, documents) = packed(numbers)?;
    Ok(Run::new(move || {
        let leaves = inputs.each_ref().map(leaf);
        let [q, k, v] = leaves.clone();
        let found = attention(q, k, v, &documents, Causality::Causal).backward();
        black_box(leaves.map(|leaf| leaf.grad(&found)));
    }))
}

/// One query a row; shape `rows columns heads key_value_heads head_size`.
fn decoded(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    precision.f32_only()?;
    let [rows, columns, h, g, c] = shape(numbers)?;
    let q = random([rows, h, c]);
    let [keys, values] = [(); 2].map(|()| random([rows, g, columns, c]));
    let starts = vec![0; rows];
    Ok(Run::new(move || {
        black_box(decode(q.clone(), &keys, &values, &starts, columns));
    }))
}

/// The loss of supervised rows and the gradient of their hidden states; shape `rows hidden vocabulary`.
fn loss(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    precision.f32_only()?;
    let [rows, d, vocabulary] = shape(numbers)?;
    let (hidden, head) = (random([rows, d]), random([vocabulary, d]));
    let targets: Vec<u32> = (0..rows).map(|i| (i * 97 % vocabulary) as u32).collect();
    let supervision = Supervision::new(&targets, &vec![1.0; rows]);
    let scale = 1.0 / rows as f64;
    Ok(Run::new(move || {
        let found = linear_cross_entropy(hidden.clone(), &head, &supervision, scale, CHUNK_ROWS);
        black_box(found.d_hidden);
    }))
}
