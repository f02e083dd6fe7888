//! Fused operations on slices of f32, for tensors that live in the memory of the CPU.
//!
//! A function reads and writes slices, splits its work between the threads of rayon, and gives
//! the same bits for any number of them.

pub(crate) mod buffer;
pub(crate) mod exp;
#[cfg(target_arch = "x86_64")]
pub(crate) mod exp_avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod exp_avx512;
pub mod isa;
#[cfg(target_arch = "x86_64")]
pub(crate) mod lanes_avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod lanes_avx512;
pub mod malloc_tuning;
pub mod matrix;
pub(crate) mod number;
pub(crate) mod packed;
pub mod pool;
pub(crate) mod prefetch;
pub mod product;
pub(crate) mod rows;
pub(crate) mod scratch;
pub(crate) mod shared;
pub(crate) mod small;
pub mod spin_scope;
pub(crate) mod sum;
pub(crate) mod tile;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tile_avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tile_avx512;
pub(crate) mod weight_arena;
