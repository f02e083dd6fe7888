//! Memory-bound operations: norms, rotary embedding, gates, optimizer.
//!
//! `_both` is the operation plus the gradients of its inputs.

use std::hint::black_box;

use burn::tensor::{Device, Tensor};
use tooltune_kernels::adamw::{AdamW, AdamWState};
use tooltune_kernels::backward_with_gradient::backward_with_gradient;
use tooltune_kernels::rms_norm::rms_norm;
use tooltune_kernels::rope::{RopeTable, rope};
use tooltune_kernels::swiglu::swiglu;

use crate::inputs::{Precision, leaf, random, shape};
use crate::{Prepare, Run};

pub(crate) const OPERATIONS: &[(&str, Prepare)] = &[
    ("rms_norm", |p, n| norm(p, n, forward)),
    ("rms_norm_both", |p, n| norm(p, n, forward_and_backward)),
    ("rope", |p, n| rotation(p, n, forward)),
    ("rope_both", |p, n| rotation(p, n, forward_and_backward)),
    ("swiglu", |p, n| gate(p, n, forward)),
    ("swiglu_both", |p, n| gate(p, n, forward_and_backward)),
    ("adamw", adamw),
];

/// Applies a function to `x` and, in `forward_and_backward`, computes the gradient of `x` from `dy`.
type Apply<const D: usize> = fn([&Tensor<D>; 2], &dyn Fn(Tensor<D>) -> Tensor<D>);

fn forward<const D: usize>([x, _]: [&Tensor<D>; 2], work: &dyn Fn(Tensor<D>) -> Tensor<D>) {
    black_box(work(x.clone()));
}

fn forward_and_backward<const D: usize>(
    [x, dy]: [&Tensor<D>; 2],
    work: &dyn Fn(Tensor<D>) -> Tensor<D>,
) {
    let x = leaf(x);
    let grads = backward_with_gradient(work(x.clone()), dy.clone());
    black_box(x.grad(&grads));
}

/// Shape `tokens hidden`.
fn norm(precision: Precision, numbers: &[usize], apply: Apply<2>) -> Result<Run, String> {
    let [n, d] = shape(numbers)?;
    let (x, weight) = (random([n, d]), random([d]));
    let dy = random([n, d]).cast(precision.dtype());
    Ok(Run::new(move || {
        apply([&x, &dy], &|x| {
            rms_norm(x, &weight, 1e-5, precision.dtype())
        });
    }))
}

/// Shape `tokens heads head_size`; all heads are rotated.
fn rotation(precision: Precision, numbers: &[usize], apply: Apply<3>) -> Result<Run, String> {
    let [n, h, c] = shape(numbers)?;
    let [x, dy] = [(); 2].map(|()| random([n, h, c]).cast(precision.dtype()));
    let positions: Vec<u32> = (0..n as u32).collect();
    let table = RopeTable::new(&positions, &vec![0.1; c / 2], 1.0, &Device::flex());
    Ok(Run::new(move || apply([&x, &dy], &|x| rope(x, &table, h))))
}

/// Shape `tokens intermediate`.
fn gate(precision: Precision, numbers: &[usize], apply: Apply<2>) -> Result<Run, String> {
    let [n, f] = shape(numbers)?;
    let gate_up = random([n, 2 * f]).cast(precision.dtype());
    let dy = random([n, f]).cast(precision.dtype());
    Ok(Run::new(move || apply([&gate_up, &dy], &swiglu)))
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
        let current = parameters.take().expect("put back below");
        parameters = Some(optimizer.update(current, gradient.clone(), &mut state, 1e-6));
    }))
}
