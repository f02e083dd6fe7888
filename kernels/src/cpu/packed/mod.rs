//! Matrix products whose right operand is packed once and used many times, summed in f32.
//!
//! A word of a panel holds as many depths as one instruction multiplies: a pair of bf16, or one
//! f32. All else is the same for both, and written once over [`Operand`](operand::Operand).

pub(crate) mod convert;
mod layout;
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

/// Numbers as room for others.
pub(crate) fn uninitialised<T: Copy>(values: &mut [T]) -> &mut [MaybeUninit<T>] {
    // SAFETY: the same layout; nothing uninitialised is written into it by those who fill it.
    unsafe { std::mem::transmute::<&mut [T], &mut [MaybeUninit<T>]>(values) }
}
