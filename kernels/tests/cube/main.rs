//! Every kernel for GPUs against the reference of its operation, on Vulkan's software device, or by
//! CUDA.

mod attention;
#[path = "../../../tests/support/bounds.rs"]
mod bounds;
mod elementwise;
mod gated_delta;
#[path = "../../../tests/support/place.rs"]
mod place;
mod recording;
mod support;
mod training;
