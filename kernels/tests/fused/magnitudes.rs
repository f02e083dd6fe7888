//! DoRA's layers against the equivalent dense weight, whose norms have no gradient.

use crate::bounds::Quantity;
use std::sync::Arc;

use burn::tensor::{Tensor, TensorData};
use tooltune_kernels::lora_linear::{LinearExtras, lora_linear};
use tooltune_kernels::{
    AdapterLayout, AdapterPart, ComputeDtype, Dropout, FrozenWeight, Magnitudes, StackedAdapter,
    StackedLinear,
};

use crate::support::test_device;

const N: usize = 37;
const IN: usize = 32;
const OUT: [usize; 3] = [16, 24, 8];
const RANKS: [Option<usize>; 3] = [Some(3), None, Some(2)];
const SCALING: f64 = 1.5;

fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(next).collect()
}

fn tensor<const D: usize>(seed: u64, shape: [usize; D]) -> Tensor<D> {
    let values = numbers(seed, shape.iter().product());
    Tensor::from_data(TensorData::new(values, shape), &test_device())
}

fn leaf<const D: usize>(x: &Tensor<D>) -> Tensor<D> {
    Tensor::from_inner(x.clone()).require_grad()
}

fn values<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().iter::<f32>().collect()
}

fn assert_near(name: &str, ours: &[f32], expected: &[f32]) {
    assert_eq!(ours.len(), expected.len(), "{name}");
    let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x * x)).sum::<f64>().sqrt();
    let difference = norm(&mut ours.iter().zip(expected).map(|(a, b)| a - b));
    let size = norm(&mut expected.iter().copied());
    let bound = Quantity::Operation.bound() * size;
    assert!(difference < bound, "{name}: {difference} of {size}");
}

#[test]
fn magnitudes_and_directions_match_the_dense_weight() {
    for dropout in [false, true] {
        check(dropout);
    }
}

fn check(drops: bool) {
    let total: usize = OUT.iter().sum();
    let weight = tensor(1, [total, IN]);
    let parts = RANKS.map(|rank| {
        rank.map(|rank| AdapterPart {
            rank,
            scaling: SCALING,
        })
    });
    let layout = Arc::new(AdapterLayout::new(IN, &OUT, &parts));
    let factors = tensor(2, [layout.len()]).mul_scalar(0.5);
    let n_magnitudes = OUT[0] + OUT[2];
    let magnitudes = tensor(3, [n_magnitudes]).add_scalar(2.0);
    let (x, dy, bias) = (
        tensor(4, [N, IN]),
        tensor(5, [N, total]),
        tensor(6, [total]),
    );
    let residual = tensor(7, [N, total]);
    let dropouts: Vec<Option<Dropout>> = (0..3)
        .map(|layer| {
            drops.then_some(Dropout {
                state: 11 + layer,
                threshold: 20_000,
            })
        })
        .collect();

    let frozen = FrozenWeight::new(
        values(weight.clone()),
        [total, IN],
        ComputeDtype::F32,
        &test_device(),
    );
    let mut linear = StackedLinear {
        weight: frozen,
        bias: Some(bias.clone()),
        out_features: OUT.into(),
        adapter: Some(StackedAdapter::new(factors.clone(), layout)),
    };
    let present = Magnitudes::new(magnitudes.clone(), &linear);
    let adapter = linear
        .adapter
        .take()
        .unwrap()
        .with_magnitudes(Some(present));
    let adapter = adapter.tracked(|tensor| leaf(&tensor));
    linear.adapter = Some(adapter.clone());
    let ours_x = leaf(&x);
    let extras = LinearExtras {
        residual: Some(Tensor::from_inner(residual.clone())),
        dropout: if drops { dropouts.clone() } else { Vec::new() },
        ..LinearExtras::default()
    };
    let y = lora_linear(ours_x.clone(), &linear, extras);
    let mut gradients = y
        .clone()
        .mul(Tensor::from_inner(dy.clone()))
        .sum()
        .backward();
    let trained = adapter.trained();
    let ours = [
        values(y.inner()),
        values(ours_x.grad_remove(&mut gradients).unwrap()),
        values(trained[0].grad_remove(&mut gradients).unwrap()),
        values(trained[1].grad_remove(&mut gradients).unwrap()),
    ];

    let inputs = [x, residual, dy, weight];
    let expected = written_out(inputs, bias, factors, magnitudes, &dropouts, drops);
    for ((what, ours), expected) in ["y", "dx", "factors", "magnitudes"]
        .iter()
        .zip(&ours)
        .zip(&expected)
    {
        assert_near(what, ours, expected);
    }
}

/// The same result with explicit dense weights: the output, and gradients of the input, the factors
/// and the magnitudes.
fn written_out(
    [x, residual, dy, weight]: [Tensor<2>; 4],
    bias: Tensor<1>,
    factors: Tensor<1>,
    magnitudes: Tensor<1>,
    dropouts: &[Option<Dropout>],
    drops: bool,
) -> [Vec<f32>; 4] {
    let (x, factors, magnitudes) = (leaf(&x), leaf(&factors), leaf(&magnitudes));
    let constant = |tensor: Tensor<2>| Tensor::<2>::from_inner(tensor);
    let (mut layers, mut first, mut at, mut first_magnitude) = (Vec::new(), 0, 0, 0);
    for (layer, (&out, rank)) in OUT.iter().zip(RANKS).enumerate() {
        let w = constant(weight.clone().narrow(0, first, out));
        let plain = x.clone().matmul(w.clone().transpose());
        first += out;
        let Some(rank) = rank else {
            layers.push(plain);
            continue;
        };
        let a: Tensor<2> = factors.clone().narrow(0, at, rank * IN).reshape([rank, IN]);
        at += rank * IN;
        let b: Tensor<2> = factors
            .clone()
            .narrow(0, at, out * rank)
            .reshape([out, rank]);
        at += out * rank;
        let direction = w.clone().add(b.matmul(a).mul_scalar(SCALING));
        let norm = direction.clone().inner().powi_scalar(2).sum_dim(1).sqrt();
        let m: Tensor<2> = magnitudes
            .clone()
            .narrow(0, first_magnitude, out)
            .reshape([out, 1]);
        first_magnitude += out;
        let scaled = direction.mul(m.div(constant(norm)));
        let dropped = match drops.then(|| dropouts[layer]).flatten() {
            Some(dropout) => {
                let mask = dropout
                    .mask([N, IN], &test_device())
                    .mul_scalar(dropout.scale());
                x.clone().mul(constant(mask))
            }
            None => x.clone(),
        };
        layers.push(plain.add(dropped.matmul(scaled.sub(w).transpose())));
    }
    let y = Tensor::cat(layers, 1)
        .add(Tensor::<1>::from_inner(bias).unsqueeze())
        .add(constant(residual));
    let mut gradients = y.clone().mul(constant(dy)).sum().backward();
    [
        values(y.inner()),
        values(x.grad_remove(&mut gradients).unwrap()),
        values(factors.grad_remove(&mut gradients).unwrap()),
        values(magnitudes.grad_remove(&mut gradients).unwrap()),
    ]
}
