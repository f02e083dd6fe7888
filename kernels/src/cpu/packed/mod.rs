//! Matmuls with a right operand that is packed once and used many times, accumulated in f32.
//!
//! A word of a panel has the depths that one instruction multiplies: a pair of bf16, or one f32.
//! Everything else is the same for both, and is written once, generic over
//! [`Operand`](operand::Operand).

pub(crate) mod convert;
pub(crate) mod layout;
pub(crate) mod operand;
pub(crate) mod panels;
pub(crate) mod product;
pub(crate) mod rows;
pub(crate) mod strips;
#[cfg(target_arch = "x86_64")]
mod strips_avx2;
pub(crate) mod tile;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tile_bf16;
#[cfg(target_arch = "x86_64")]
mod tile_bf16_avx2;
pub(crate) mod tile_f32;
mod transpose;
pub(crate) mod transposed_gemm;

use std::mem::MaybeUninit;

/// Reinterprets elements as uninitialised memory.
pub(crate) fn uninitialised<T: Copy>(values: &mut [T]) -> &mut [MaybeUninit<T>] {
    // SAFETY: same layout; users never write uninitialised values.
    unsafe { std::mem::transmute::<&mut [T], &mut [MaybeUninit<T>]>(values) }
}
