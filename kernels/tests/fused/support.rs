//! Random tensors, the device under test, and tolerances.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{DType, Device, Gradients, Tensor, TensorData};

use crate::bounds::Quantity;
pub(crate) use crate::numbers::Numbers;
use crate::test_device::TestDevice;

/// The device that the tests run on.
pub(crate) fn test_device() -> Device {
    match TestDevice::from_env() {
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

/// The dtypes of the fused operations.
pub(crate) const BOTH_TYPES: [DType; 2] = [DType::F32, DType::BF16];

impl Numbers {
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

/// Like `assert_near`, for results that were rounded to `dtype`.
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

/// The panic message with which `work` rejects its input.
pub(crate) fn refusal<R>(work: impl FnOnce() -> R) -> String {
    let refused = catch_unwind(AssertUnwindSafe(work)).err();
    let message = refused.expect("work panics");
    match message.downcast::<String>() {
        Ok(text) => *text,
        Err(message) => (*message.downcast::<&str>().expect("a string message")).to_owned(),
    }
}
