//! Random tensors, the device under test, threads and refusals.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{DType, Device, Tensor};

use crate::backend::TestBackend;
pub(crate) use crate::backend::{
    assert_near, assert_near_in, difference, gradient, gradients, leaf, values,
};
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

/// The device and dtypes of the comparisons that all backends share.
pub(crate) fn under_test() -> TestBackend {
    TestBackend {
        device: test_device(),
        dtypes: &BOTH_TYPES,
    }
}

impl Numbers {
    pub(crate) fn tensor<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        self.tensor_on(&test_device(), shape)
    }
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
