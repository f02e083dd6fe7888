//! Fused operations on slices of f32, for tensors that live in the memory of the CPU.
//!
//! A function reads and writes slices, splits its work between the threads of rayon, and gives
//! the same bits for any number of them.

pub mod awake;
pub(crate) mod buffer;
pub(crate) mod exp;
pub mod heap;
pub mod isa;
pub(crate) mod kept;
#[cfg(target_arch = "x86_64")]
pub(crate) mod lanes_avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod lanes_avx512;
pub mod matrix;
pub(crate) mod number;
pub(crate) mod packed;
pub mod pool;
#[cfg(target_arch = "x86_64")]
pub(crate) mod powers_avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod powers_avx512;
pub(crate) mod prefetch;
pub mod product;
pub(crate) mod rows;
pub(crate) mod scratch;
pub(crate) mod shared;
pub(crate) mod sum;
pub(crate) mod tile;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tile_avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tile_avx512;
