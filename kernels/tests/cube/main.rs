//! Every kernel for GPUs against the reference of its operation, on Vulkan's software device.

mod attention;
mod elementwise;
mod support;
mod training;
