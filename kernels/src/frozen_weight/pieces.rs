//! Numbers of a weight on their way to its device: parts are filled in all threads at once, and on a GPU
//! no more of the weight than some pieces is ever in the host's memory.

use std::mem::MaybeUninit;

use burn::tensor::bf16;
#[cfg(feature = "cube")]
use burn::tensor::{DType, Device, Tensor};
use rayon::prelude::*;

#[cfg(feature = "cube")]
use super::cuda::{Piece, PieceOps as _};
#[cfg(feature = "cube")]
use crate::cpu::pool::Buffer;

/// Numbers of a piece, 8 MiB. Pieces pass through memory that the GPU's copy engine reads, and are as
/// many as the queue of the device has places: the memory of all of them is some hundred MiB, which
/// each weight finds warm.
#[cfg(feature = "cube")]
const PIECE: usize = 4 << 20;

/// Numbers of a part, which one thread fills while they are in its cache.
const PART: usize = 1 << 18;

/// Fills all of `to`, whose first number is number `start` of the weight.
fn fill_parts<E: Send>(
    start: usize,
    to: &mut [MaybeUninit<bf16>],
    fill: &(impl Fn(usize, &mut [bf16]) -> Result<(), E> + Sync),
) -> Result<(), E> {
    let parts = to.par_chunks_mut(PART).enumerate();
    let filled = parts.map(|(i, part)| fill(start + i * PART, zeroed(part)));
    // All parts are written, so that nothing of `to` stays without a value behind a fault either.
    filled.reduce(|| Ok(()), Result::and)
}

/// Zeros, which are in the cache for what is written over them.
fn zeroed(part: &mut [MaybeUninit<bf16>]) -> &mut [bf16] {
    part.fill(MaybeUninit::new(bf16::ZERO));
    // SAFETY: all of them have just been written.
    unsafe { std::slice::from_raw_parts_mut(part.as_mut_ptr().cast(), part.len()) }
}

/// All numbers of a weight.
///
/// # Errors
///
/// The first that `fill` answers with.
pub(super) fn whole<E: Send>(
    n: usize,
    fill: impl Fn(usize, &mut [bf16]) -> Result<(), E> + Sync,
) -> Result<Vec<bf16>, E> {
    let mut values = Vec::with_capacity(n);
    fill_parts(0, &mut values.spare_capacity_mut()[..n], &fill)?;
    // SAFETY: the capacity suffices, and all of it was written.
    unsafe { values.set_len(n) };
    Ok(values)
}

/// The weight on a GPU.
///
/// # Errors
///
/// As [`whole`].
#[cfg(feature = "cube")]
pub(super) fn on_gpu<E: Send>(
    shape: [usize; 2],
    device: &Device,
    fill: impl Fn(usize, &mut [bf16]) -> Result<(), E> + Sync,
) -> Result<Tensor<2>, E> {
    use burn::backend::Dispatch;

    let beside = Tensor::<1>::empty([1], (device, DType::BF16)).into_dispatch();
    let mut matrix = Dispatch::matrix_beside(beside, shape);
    let n = shape[0] * shape[1];
    for start in (0..n).step_by(PIECE) {
        let mut filled = Ok(());
        // SAFETY: all parts are written.
        let piece = unsafe {
            Buffer::filled(PIECE.min(n - start), |to| {
                filled = fill_parts(start, to, &fill);
            })
        };
        filled?;
        matrix = Dispatch::with_piece(matrix, start, Piece::new(piece));
    }
    Ok(Tensor::from_dispatch(matrix))
}
