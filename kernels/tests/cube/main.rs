//! Every kernel for GPUs against the reference of its operation, on Vulkan's software device.

mod elementwise;
mod support;
