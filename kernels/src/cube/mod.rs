//! Shared code of the GPU kernels: tensor arguments, launch sizes, reductions over a cube.
//!
//! Kernels are written in CubeCL, which compiles them for CUDA at run time and for Vulkan in tests.
//! A cube is a CUDA thread block, a unit is a thread. Every kernel takes contiguous buffers and its
//! sizes as numbers. Launches therefore need no further lookups, and sources can be generated for a
//! device that is not present.

pub(crate) mod fragments;
pub(crate) mod launch;
pub(crate) mod reduce;
#[cfg(feature = "cuda-source")]
pub mod source;
