//! Every GPU kernel against the reference of its operation, on Vulkan's software device or on CUDA.

mod attention;
#[path = "../../../tests/support/bounds.rs"]
mod bounds;
mod elementwise;
mod frozen_weight;
mod gated_delta;
#[path = "../backend/nf4.rs"]
mod nf4;
#[cfg(feature = "cuda")]
mod node;
#[path = "../support/numbers.rs"]
mod numbers;
#[cfg(feature = "cuda")]
mod ranks;
mod recording;
mod support;
#[path = "../../../tests/support/test_device.rs"]
mod test_device;
mod training;
