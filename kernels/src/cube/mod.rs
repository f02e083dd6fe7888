//! What the kernels for GPUs share: tensors in and out, launch sizes, sums over a cube.
//!
//! Kernels are written in CubeCL, which compiles them for CUDA at run time and for Vulkan in tests.
//! A cube is CUDA's thread block, a unit its thread. Every kernel takes contiguous buffers and the
//! sizes it needs as numbers: a launch then has nothing to look up, and a text can be emitted for
//! a device that is not there.

pub(crate) mod fragments;
pub(crate) mod launch;
pub(crate) mod reduce;
#[cfg(feature = "cuda-source")]
pub mod source;
