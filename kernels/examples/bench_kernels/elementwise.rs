//! Operations that cost memory traffic: norms, rotation, the gate, the optimizer.
//!
//! `_both` is the operation and the gradients of its inputs, from an upstream gradient of ones.

use std::hint::black_box;

use burn::tensor::{Device, Tensor};
use tooltune_kernels::adamw::{AdamW, AdamWState};
use tooltune_kernels::rms_norm::rms_norm;
use tooltune_kernels::rope::{RopeTable, rope};
use tooltune_kernels::swiglu::swiglu;

use crate::inputs::{Precision, leaf, random, shape};
use crate::{Prepare, Run};

pub(crate) const OPERATIONS: &[(&str, Prepare)] = &[
    ("rms_norm", |p, n| norm(p, n, forward)),
    ("rms_norm_both", |p, n| norm(p, n, both)),
    ("rope", |p, n| rotation(p, n, forward)),
    ("rope_both", |p, n| rotation(p, n, both)),
    ("swiglu", gate),
    ("swiglu_both", gate_both),
    ("adamw", adamw),
];

/// Applies a function, with or without its gradient.
type Apply<const D: usize> = fn(&Tensor<D>, &dyn Fn(Tensor<D>) -> Tensor<D>);

fn forward<const D: usize>(x: &Tensor<D>, work: &dyn Fn(Tensor<D>) -> Tensor<D>) {
    black_box(work(x.clone()));
}

fn both<const D: usize>(x: &Tensor<D>, work: &dyn Fn(Tensor<D>) -> Tensor<D>) {
    let x = leaf(x);
    let found = work(x.clone()).backward();
    black_box(x.grad(&found));
}

/// Shape `tokens hidden`.
fn norm(precision: Precision, numbers: &[usize], apply: Apply<2>) -> Result<Run, String> {
    precision.f32_only()?;
    let [n, d] = shape(numbers)?;
    let (x, weight) = (random([n, d]), random([d]));
    Ok(Run::new(move || {
        apply(&x, &|x| rms_norm(x, &weight, 1e-5));
    }))
}

/// Shape `tokens heads head_size`.
fn rotation(precision: Precision, numbers: &[usize], apply: Apply<3>) -> Result<Run, String> {
    precision.f32_only()?;
    let [n, h, c] = shape(numbers)?;
    let x = random([n, h, c]);
    let positions: Vec<u32> = (0..n as u32).collect();
    let table = RopeTable::new(&positions, &vec![0.1; c / 2], 1.0, &Device::flex());
    Ok(Run::new(move || apply(&x, &|x| rope(x, &table))))
}

/// Shape `tokens intermediate`.
fn gate(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    precision.f32_only()?;
    let [n, f] = shape(numbers)?;
    let (gate, up) = (random([n, f]), random([n, f]));
    Ok(Run::new(move || {
        black_box(swiglu(gate.clone(), up.clone()));
    }))
}

fn gate_both(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    precision.f32_only()?;
    let [n, f] = shape(numbers)?;
    let (gate, up) = (random([n, f]), random([n, f]));
    Ok(Run::new(move || {
        let (gate, up) = (leaf(&gate), leaf(&up));
        let found = swiglu(gate.clone(), up.clone()).backward();
        black_box([gate.grad(&found), up.grad(&found)]);
    }))
}

/// Shape `parameters`.
fn adamw(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    precision.f32_only()?;
    let [p] = shape(numbers)?;
    let gradient = random([p]);
    let mut parameters = Some(random([p]));
    let mut state = AdamWState::new(&gradient);
    let optimizer = AdamW {
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.01,
    };
    Ok(Run::new(move || {
        let before = parameters.take().expect("put back below");
        parameters = Some(optimizer.update(before, gradient.clone(), &mut state, 1e-6));
    }))
}
