//! Speed of the operations between linear maps on the CPU, beside the machine's own limits.
//!
//! `RAYON_NUM_THREADS=1 cargo run --release -p tooltune-kernels --example cpu_activations` prints
//! the best of many runs of each (with ` -- BF16` those of one type), by the clock, at the sizes of SmolLM2-135M: a micro-batch of
//! 1,137 tokens in 4 documents, and a pack of 2,048 tokens. Elementwise operations are given in
//! bytes read and written, as a part of the rate of a copy; attention in operations on pairs of
//! tokens that see each other.

use std::hint::black_box;
use std::time::Instant;

use burn::tensor::{DType, Device, Distribution, Tensor};
use rayon::prelude::*;
use tooltune_kernels::attention::{Causality, Columns, Documents, append, attention, decode};
use tooltune_kernels::rms_norm::rms_norm;
use tooltune_kernels::rope::{RopeTable, rope};
use tooltune_kernels::seed::seed;
use tooltune_kernels::swiglu::swiglu;

const ROUNDS: usize = 40;
const N: usize = 1137;

fn main() {
    let copy = copy_rate();
    println!("copy {copy:.1} GB/s");
    let only = std::env::args().nth(1);
    let dtypes = [DType::F32, DType::BF16].into_iter();
    let dtypes: Vec<_> = dtypes
        .filter(|dtype| {
            only.as_ref()
                .is_none_or(|only| *only == format!("{dtype:?}"))
        })
        .collect();
    for &dtype in &dtypes {
        elementwise(dtype, copy);
    }
    for dtype in dtypes {
        attentions(dtype);
        decodes(dtype);
    }
}

fn random<const D: usize>(shape: [usize; D], dtype: DType) -> Tensor<D> {
    let x = Tensor::<D>::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex());
    x.cast(dtype)
}

/// Seconds of the best of many runs.
fn best<R>(mut run: impl FnMut() -> R) -> f64 {
    (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            let result = black_box(run());
            let seconds = start.elapsed().as_secs_f64();
            drop(result);
            seconds
        })
        .fold(f64::INFINITY, f64::min)
}

/// Bytes read and written a second, in GB, by a copy between buffers that no cache holds.
fn copy_rate() -> f64 {
    let from = vec![1u8; 64 << 20];
    let mut to = vec![0u8; from.len()];
    let seconds = best(|| {
        let parts = to.par_chunks_mut(1 << 20).zip(from.par_chunks(1 << 20));
        parts.for_each(|(to, from)| to.copy_from_slice(from));
    });
    2.0 * from.len() as f64 / seconds * 1e-9
}

/// Seconds of the forward and of the backward pass alone.
fn both_ways<const D: usize, const E: usize>(
    x: &Tensor<D>,
    f: &dyn Fn(Tensor<D>) -> Tensor<E>,
) -> [f64; 2] {
    let (mut forward, mut backward) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        // A copy of its own, as the result of the operation before would be.
        let leaf = Tensor::from_inner(x.clone()).require_grad();
        let x = leaf.mul_scalar(1.0);
        let start = Instant::now();
        let y = f(x);
        forward = forward.min(start.elapsed().as_secs_f64());
        let dy = y.clone().inner().mul_scalar(1.0);
        let y = seed(y, dy);
        let start = Instant::now();
        let gradients = y.backward();
        backward = backward.min(start.elapsed().as_secs_f64());
        drop(gradients);
    }
    [forward, backward]
}

fn elementwise(dtype: DType, copy: f64) {
    let size = if dtype == DType::F32 { 4 } else { 2 };
    let report = |name: &str, seconds: [f64; 2], bytes: [usize; 2]| {
        let rates = [0, 1].map(|i| bytes[i] as f64 / seconds[i] * 1e-9);
        println!(
            "{name:28}{dtype:?}{:>8.0} µs {:>6.1} GB/s {:.2} |{:>8.0} µs {:>6.1} GB/s {:.2}",
            seconds[0] * 1e6,
            rates[0],
            rates[0] / copy,
            seconds[1] * 1e6,
            rates[1],
            rates[1] / copy,
        );
    };
    let (x, weight) = (random([N, 576], DType::F32), random([576], DType::F32));
    let seconds = both_ways(&x, &|x| rms_norm(x, &weight, 1e-5, dtype));
    let numbers = N * 576;
    report(
        "rms_norm 576",
        seconds,
        [numbers * (4 + size), numbers * (8 + size)],
    );
    let positions: Vec<u32> = (0..N as u32).collect();
    let table = RopeTable::new(&positions, &[0.1; 32], 1.0, &Device::flex());
    let seconds = both_ways(&random([N, 15, 64], dtype), &|x| rope(x, &table, 12));
    let bytes = 2 * N * 12 * 64 * size;
    report("rope 12 of 15 heads of 64", seconds, [bytes, bytes]);
    let seconds = both_ways(&random([N, 3072], dtype), &swiglu);
    let bytes = N * 1536 * size;
    report("swiglu 1536", seconds, [3 * bytes, 5 * bytes]);
}

fn attentions(dtype: DType) {
    for (name, borders, heads) in [
        (
            "4 documents of 284",
            vec![0, 284, 568, 852, 1137],
            [9, 3, 64],
        ),
        (
            "20 documents of 100",
            (0..21).map(|i| i * 100).collect(),
            [9, 3, 64],
        ),
        ("1 document of 2048", vec![0, 2048], [9, 3, 64]),
        (
            "4 documents of 284",
            vec![0, 284, 568, 852, 1137],
            [32, 8, 64],
        ),
        (
            "4 documents of 284",
            vec![0, 284, 568, 852, 1137],
            [14, 2, 64],
        ),
    ] {
        let [h, g, c] = heads;
        let n = borders[borders.len() - 1];
        let documents = Documents::new(&borders, n);
        let pairs: usize = documents.spans().map(|(_, n)| n * (n + 1) / 2).sum();
        let flops = (4 * c * h * pairs) as f64;
        let [forward, backward] = both_ways(&random([n, h + 2 * g, c], dtype), &|x| {
            attention(x, h, &documents, Causality::Causal)
        });
        println!(
            "attention {h}/{g} {name:20}{dtype:?}{:>8.0} µs {:>4.0} GF/s |{:>8.0} µs {:>4.0} GF/s",
            forward * 1e6,
            flops / forward * 1e-9,
            backward * 1e6,
            2.5 * flops / backward * 1e-9,
        );
    }
}

fn decodes(dtype: DType) {
    let size = if dtype == DType::F32 { 4 } else { 2 };
    for b in [1, 16] {
        // As many layers as no cache holds.
        let layers: Vec<[Tensor<4>; 2]> = (0..30)
            .map(|_| [0; 2].map(|_| random([b, 3, 560, 64], dtype)))
            .collect();
        let qkv = random([b, 15, 64], dtype);
        let columns = Columns {
            starts: &vec![0; b],
            end: 500,
        };
        let seconds = best(|| {
            for [keys, values] in &layers {
                black_box(decode(qkv.clone(), 9, (keys, values), columns));
            }
        });
        let bytes = (2 * 30 * b * 3 * 500 * 64 * size) as f64;
        println!(
            "decode {b:2} rows, 30 layers of 500 columns {dtype:?}{:>8.0} µs {:>6.1} GB/s",
            seconds * 1e6,
            bytes / seconds * 1e-9
        );
        let mut cache = random([b, 3, 560, 64], dtype);
        let seconds = best(|| cache.inplace(|cache| append(cache, &qkv, 9, 500)));
        println!("append {b:2} rows {dtype:?}{:>8.2} µs", seconds * 1e6);
    }
}
