//! Transfers a weight to its device: all threads fill parts at the same time, and for a GPU only a
//! few pieces of the weight are in host memory at once.

use std::mem::MaybeUninit;
#[cfg(feature = "cuda")]
use std::ops::Range;

use burn::tensor::bf16;
#[cfg(feature = "cube")]
use burn::tensor::{DType, Device, Tensor};
#[cfg(feature = "cuda")]
use cubecl::client::Client;
#[cfg(feature = "cuda")]
use cubecl::server::Handle;
use rayon::prelude::*;

#[cfg(feature = "cube")]
use super::cuda::{Piece, PieceOps as _};
#[cfg(feature = "cube")]
use crate::cpu::pool::Buffer;

/// Elements per piece, 8 MiB. Pieces are in memory that the GPU's copy engine reads, and there is
/// one per slot of the device's queue. Together they take a few hundred MiB, which all weights
/// reuse.
#[cfg(feature = "cube")]
const PIECE: usize = 4 << 20;

/// Elements per part, which one thread fills while they are in its cache.
const PART: usize = 1 << 18;

/// Fills all of `to`, which starts at element `start` of the weight.
fn fill_parts<E: Send>(
    start: usize,
    to: &mut [MaybeUninit<bf16>],
    fill: &(impl Fn(usize, &mut [bf16]) -> Result<(), E> + Sync),
) -> Result<(), E> {
    let parts = to.par_chunks_mut(PART).enumerate();
    let results = parts.map(|(i, part)| fill(start + i * PART, zero_fill(part)));
    // All parts are written, so that `to` is initialised even after an error.
    results.reduce(|| Ok(()), Result::and)
}

/// Fills the part with zeros, so that it is in the cache when it is overwritten.
fn zero_fill(part: &mut [MaybeUninit<bf16>]) -> &mut [bf16] {
    part.fill(MaybeUninit::new(bf16::ZERO));
    // SAFETY: all elements were just written.
    unsafe { std::slice::from_raw_parts_mut(part.as_mut_ptr().cast(), part.len()) }
}

/// All elements of a weight.
///
/// # Errors
///
/// The first error of `fill`.
pub(super) fn fill_all<E: Send>(
    n: usize,
    fill: impl Fn(usize, &mut [bf16]) -> Result<(), E> + Sync,
) -> Result<Vec<bf16>, E> {
    let mut values = Vec::with_capacity(n);
    fill_parts(0, &mut values.spare_capacity_mut()[..n], &fill)?;
    // SAFETY: the capacity suffices, and all elements were written.
    unsafe { values.set_len(n) };
    Ok(values)
}

/// Writes the elements `range` of a weight to GPU memory, from byte `offset` of `memory` on.
///
/// # Errors
///
/// Same as [`fill_all`].
#[cfg(feature = "cuda")]
pub(crate) fn write_range<E: Send>(
    range: Range<usize>,
    client: &Client,
    (memory, offset): (&Handle, usize),
    fill: impl Fn(usize, &mut [bf16]) -> Result<(), E> + Sync,
) -> Result<(), E> {
    for start in range.clone().step_by(PIECE) {
        let mut result = Ok(());
        // SAFETY: all parts are written.
        let piece = unsafe {
            Buffer::filled(PIECE.min(range.end - start), |to| {
                result = fill_parts(start, to, &fill);
            })
        };
        result?;
        let offset = offset + (start - range.start) * size_of::<bf16>();
        let to = memory.clone().offset_start(offset as u64);
        client.write(&to, piece.into_bytes());
    }
    Ok(())
}

/// The weight on a GPU.
///
/// # Errors
///
/// Same as [`fill_all`].
#[cfg(feature = "cube")]
pub(super) fn on_gpu<E: Send>(
    shape: [usize; 2],
    device: &Device,
    fill: impl Fn(usize, &mut [bf16]) -> Result<(), E> + Sync,
) -> Result<Tensor<2>, E> {
    use burn::backend::Dispatch;

    let like = Tensor::<1>::empty([1], (device, DType::BF16)).into_dispatch();
    let mut matrix = Dispatch::empty_matrix_like(like, shape);
    let n = shape[0] * shape[1];
    for start in (0..n).step_by(PIECE) {
        let mut result = Ok(());
        // SAFETY: all parts are written.
        let piece = unsafe {
            Buffer::filled(PIECE.min(n - start), |to| {
                result = fill_parts(start, to, &fill);
            })
        };
        result?;
        matrix = Dispatch::with_piece(matrix, start, Piece::new(piece));
    }
    Ok(Tensor::from_dispatch(matrix))
}
