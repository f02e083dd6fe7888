//! Matmuls: frozen layers (forward and backward), trained layers, and frozen layers with adapters.
//!
//! Shapes are `tokens in out`.

use std::cell::RefCell;
use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use tooltune_kernels::backward_with_gradient::backward_with_gradient;
use tooltune_kernels::cpu::matrix::Matrix;
use tooltune_kernels::cpu::product::product;
use tooltune_kernels::lora_linear::{LinearExtras, lora_linear};
use tooltune_kernels::{AdapterLayout, AdapterPart, FrozenWeight, StackedAdapter, StackedLinear};

use crate::inputs::{Precision, cold_copies, floats, leaf, random, shape};
use crate::{Prepare, Run};

pub(crate) const OPERATIONS: &[(&str, Prepare)] = &[
    ("linear", linear),
    ("linear_cold", linear_cold),
    ("linear_dx", linear_dx),
    ("trained", trained_forward),
    ("trained_dx", trained_dx),
    ("trained_dw", trained_dw),
    ("adapted_both", lora_both),
];

/// A frozen weight `[outputs, inputs]`, as the model stores it.
fn frozen(precision: Precision, inputs: usize, outputs: usize) -> StackedLinear {
    let values = floats(outputs * inputs);
    let shape = [outputs, inputs];
    StackedLinear {
        weight: FrozenWeight::new(values, shape, precision.compute_dtype(), &Device::flex()),
        bias: None,
        out_features: [outputs].into(),
        adapter: None,
    }
}

/// `x Wᵀ`.
fn linear(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    let [n, inputs, outputs] = shape(numbers)?;
    let x = random([n, inputs]).cast(precision.dtype());
    let linear = frozen(precision, inputs, outputs);
    Ok(Run::new(move || {
        black_box(lora_linear(x.clone(), &linear, LinearExtras::default()));
    }))
}

/// `x Wᵀ` with a different W for each call: in decoding, each layer is read once per token.
fn linear_cold(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    let [n, inputs, outputs] = shape(numbers)?;
    let x = random([n, inputs]).cast(precision.dtype());
    let weight = frozen(precision, inputs, outputs);
    let weights: Vec<StackedLinear> = (0..cold_copies(weight.weight.bytes()))
        .map(|_| frozen(precision, inputs, outputs))
        .collect();
    let mut next = 0;
    Ok(Run::new(move || {
        next = (next + 1) % weights.len();
        black_box(lora_linear(
            x.clone(),
            &weights[next],
            LinearExtras::default(),
        ));
    }))
}

/// A weight with at least this many outputs is an LM head, whose `dy W` panels are built once.
const HEAD: usize = 1 << 14;

/// `dy W` as the backward pass computes it: from panels derived from the panels for `x Wᵀ`, except
/// for an LM head.
fn linear_dx(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    let [n, inputs, outputs] = shape(numbers)?;
    if outputs >= HEAD {
        return linear(precision, &[n, outputs, inputs]);
    }
    let x = random([n, inputs]).cast(precision.dtype());
    let dy = random([n, outputs]).cast(precision.dtype());
    let linear = frozen(precision, inputs, outputs);
    let graphs = Rc::new(RefCell::new(Vec::new()));
    let new_graphs = graphs.clone();
    let prepare = move |calls: usize| {
        let graph = || {
            let x = leaf(&x);
            let y = lora_linear(x.clone(), &linear, LinearExtras::default());
            (x, y, dy.clone())
        };
        new_graphs.borrow_mut().extend((0..calls).map(|_| graph()));
    };
    let call = move || {
        let (x, y, dy): (Tensor<2>, Tensor<2>, Tensor<2>) =
            graphs.borrow_mut().pop().expect("one graph per call");
        black_box(x.grad(&backward_with_gradient(y, dy)));
    };
    Ok(Run {
        prepare: Some(Box::new(prepare)),
        ..Run::new(call)
    })
}

/// `x Wᵀ` without cached panels of W.
fn trained_forward(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    precision.f32_only()?;
    let [n, inputs, outputs] = shape(numbers)?;
    let (x, weight) = (floats(n * inputs), floats(outputs * inputs));
    Ok(Run::new(move || {
        let weight = Matrix::from_rows(&weight, inputs).transposed();
        black_box(product(Matrix::from_rows(&x, inputs), weight));
    }))
}

/// `dy W`.
fn trained_dx(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    precision.f32_only()?;
    let [n, inputs, outputs] = shape(numbers)?;
    let (dy, weight) = (floats(n * outputs), floats(outputs * inputs));
    Ok(Run::new(move || {
        let weight = Matrix::from_rows(&weight, inputs);
        black_box(product(Matrix::from_rows(&dy, outputs), weight));
    }))
}

/// `dyᵀ x`: the gradient of W.
fn trained_dw(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    precision.f32_only()?;
    let [n, inputs, outputs] = shape(numbers)?;
    let (x, dy) = (floats(n * inputs), floats(n * outputs));
    Ok(Run::new(move || {
        let dy = Matrix::from_rows(&dy, outputs).transposed();
        black_box(product(dy, Matrix::from_rows(&x, inputs)));
    }))
}

/// `x Wᵀ + s (x Aᵀ) Bᵀ` and the gradients of x, A and B; shape `tokens in out rank`.
fn lora_both(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    let [n, inputs, outputs, rank] = shape(numbers)?;
    let x = random([n, inputs]).cast(precision.dtype());
    let dy = random([n, outputs]).cast(precision.dtype());
    let part = AdapterPart { rank, scaling: 2.0 };
    let layout = Arc::new(AdapterLayout::new(inputs, &[outputs], &[Some(part)]));
    let factors = random([layout.len()]);
    let mut linear = frozen(precision, inputs, outputs);
    Ok(Run::new(move || {
        let (x, factors) = (leaf(&x), leaf(&factors));
        linear.adapter = Some(StackedAdapter::new(factors.clone(), layout.clone()));
        let y = lora_linear(x.clone(), &linear, LinearExtras::default());
        let grads = backward_with_gradient(y, dy.clone());
        black_box((x.grad(&grads), factors.grad(&grads)));
    }))
}
