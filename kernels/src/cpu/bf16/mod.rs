//! Matrix products of bf16 values summed in f32.
//!
//! The instruction that multiplies bf16 takes two neighbours of the depth at once. The right
//! operand is therefore packed in pairs, once for each weight; the left one is read where it lies,
//! because its rows already hold the depth in order.

pub(crate) mod convert;
pub(crate) mod panels;
pub(crate) mod product;
pub(crate) mod tall;
pub(crate) mod tile;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tile_avx512;
