//! Random tensors, the device they lie on, and how near two results must be.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{DType, Device, Gradients, Tensor, TensorData};

use crate::bounds::Quantity;
use crate::place::TestDevice;

/// The device that the tests run on.
pub(crate) fn test_device() -> Device {
    match TestDevice::chosen() {
        TestDevice::Cpu => Device::flex(),
        TestDevice::Cuda(index) => cuda(index),
    }
}

#[cfg(feature = "cuda")]
fn cuda(index: usize) -> Device {
    let driver = tooltune_kernels::gpu::driver().expect("a driver");
    assert!(index < driver.gpus.len(), "no GPU {index}: {driver:?}");
    Device::cuda(index)
}

#[cfg(not(feature = "cuda"))]
fn cuda(index: usize) -> Device {
    panic!("cuda:{index}: these tests were built without the feature cuda")
}

/// What the fused operations read.
pub(crate) const BOTH_TYPES: [DType; 2] = [DType::F32, DType::BF16];

/// Numbers in -1..1 that depend on the seed alone.
#[derive(Debug)]
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }

    pub(crate) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n)
            .map(|_| self.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0)
            .collect()
    }

    pub(crate) fn tensor<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        let values = self.floats(shape.iter().product());
        Tensor::from_data(TensorData::new(values, shape), &test_device())
    }
}

pub(crate) fn values<const D: usize>(x: &Tensor<D>) -> Vec<f32> {
    x.clone().into_data().iter::<f32>().collect()
}

/// `|ours - expected| / |expected|` in the Euclidean norm.
pub(crate) fn difference(ours: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(ours.len(), expected.len());
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let off = square(
        &mut ours
            .iter()
            .zip(expected)
            .map(|(a, b)| f64::from(*a) - f64::from(*b)),
    );
    let norm = square(&mut expected.iter().map(|b| f64::from(*b)));
    if off == 0.0 { 0.0 } else { (off / norm).sqrt() }
}

pub(crate) fn assert_near(name: &str, ours: &[f32], expected: &[f32]) {
    assert_near_in(DType::F32, name, ours, expected);
}

/// The same for results that went through numbers of type `dtype`.
pub(crate) fn assert_near_in(dtype: DType, name: &str, ours: &[f32], expected: &[f32]) {
    let difference = difference(ours, expected);
    assert!(
        difference < Quantity::Operation.bound_in(dtype),
        "{name}: relative difference {difference}"
    );
}

/// The tensor as a leaf under autodiff.
pub(crate) fn leaf<const D: usize>(x: &Tensor<D>) -> Tensor<D> {
    Tensor::from_inner(x.clone()).require_grad()
}

/// Gradients of the sum of `y` weighted by `dy`.
pub(crate) fn gradients<const D: usize>(y: Tensor<D>, dy: &Tensor<D>) -> Gradients {
    y.mul(Tensor::from_inner(dy.clone())).sum().backward()
}

pub(crate) fn gradient<const D: usize>(x: &Tensor<D>, gradients: &Gradients) -> Vec<f32> {
    values(
        &x.grad(gradients)
            .expect("a leaf that the result depends on"),
    )
}

/// Runs `work` on a pool of `threads` threads.
pub(crate) fn on_threads<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap()
        .install(work)
}

/// What `work` says where it refuses its input.
pub(crate) fn refusal<R>(work: impl FnOnce() -> R) -> String {
    let refused = catch_unwind(AssertUnwindSafe(work)).err();
    let message = refused.expect("a refusal");
    match message.downcast::<String>() {
        Ok(text) => *text,
        Err(message) => (*message.downcast::<&str>().expect("a text")).to_owned(),
    }
}
