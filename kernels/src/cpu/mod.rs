//! Fused operations on slices, for tensors in CPU memory.
//!
//! Each function reads and writes slices and splits its work between rayon threads. The result is
//! bitwise the same for any number of threads.

pub(crate) mod buffer;
pub(crate) mod exp;
#[cfg(target_arch = "x86_64")]
pub(crate) mod exp_avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod exp_avx512;
pub(crate) mod gated;
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
