//! Sums of the GPUs of several processes.
//!
//! Each process gets the sums of one piece of the vector, rounds them to f32, and gives them to the
//! others: 12 bytes per value instead of the 16 of an all-reduce of the integers.

#[cfg(feature = "cuda")]
pub(super) use between::{only_part, piece_len, sum_of_ranks};

use cubecl::prelude::*;

/// The sums of a piece times `factor`. The flag becomes a number other than 0 if it is set.
#[cube(launch, create_dummy_kernel)]
fn gradient_sum_piece(sums: &[i64], floats: &mut [f32], length: u32, factor: f32) {
    let i = ABSOLUTE_POS;
    if i < length as usize {
        floats[i] = f32::cast_from(sums[i]) * factor;
    }
}

/// The first `length` values of `pieces`, or NaN if the flag after them is set.
#[cube(launch, create_dummy_kernel)]
fn gradient_sum_joined(pieces: &[f32], floats: &mut [f32], length: u32, nan: f32) {
    let i = ABSOLUTE_POS;
    if i < length as usize {
        let mut float = pieces[i];
        if pieces[length as usize] != 0.0 {
            float = nan;
        }
        floats[i] = float;
    }
}

/// `part` with zeros after its `length` values, up to `end`.
#[cube(launch, create_dummy_kernel)]
fn gradient_sum_padded(part: &[f32], padded: &mut [f32], length: u32, end: u32) {
    let i = ABSOLUTE_POS;
    if i < end as usize {
        let mut float = 0.0f32;
        if i < length as usize {
            float = part[i];
        }
        padded[i] = float;
    }
}

#[cfg(feature = "cuda")]
mod between {
    use burn::backend::tensor::{FloatTensor, IntTensor};
    use burn::backend::{Backend, DType, Dispatch, backend_extension};
    use burn::tensor::{Int, Tensor};
    use burn_cubecl::CubeBackend;
    use burn_cubecl::tensor::CubeTensor;

    use super::{gradient_sum_joined, gradient_sum_padded, gradient_sum_piece};
    use crate::cube::launch::{argument, contiguous, output, units};
    use crate::nccl::{Communicator, Element, NcclError};

    /// Pieces begin at multiples of this number of values, so that NCCL copies whole vectors.
    const ALIGNMENT: usize = 32;

    /// Length of the pieces of `n` values.
    pub(in super::super) fn piece_len(n: usize, world_size: usize) -> usize {
        n.div_ceil(world_size).next_multiple_of(ALIGNMENT)
    }

    /// Sums of several processes; not differentiable.
    #[backend_extension(Cube)]
    pub(crate) trait RankSumOps: Backend {
        /// Same contract as [`sum_of_ranks`].
        fn sums_of_ranks(
            sums: IntTensor<Self>,
            n_values: usize,
            factor: f32,
            communicator: Communicator,
        ) -> FloatTensor<Self>;

        /// The only part `[p]` of a step, with zeros after it. The other processes have zeros.
        fn part_of_any_rank(
            part: FloatTensor<Self>,
            communicator: Communicator,
        ) -> FloatTensor<Self>;
    }

    impl RankSumOps for CubeBackend {
        fn sums_of_ranks(
            sums: CubeTensor,
            n_values: usize,
            factor: f32,
            communicator: Communicator,
        ) -> CubeTensor {
            let (sums, [n_sums]) = contiguous(sums);
            let n_own = n_sums / communicator.world_size();
            assert!(
                n_sums > n_values && n_own * communicator.world_size() == n_sums,
                "gradient_sum: a sum for this number of processes"
            );
            let own_sums = output(&sums, [n_own], DType::I64);
            communicator.reduce_scatter(&sums, &own_sums, Element::I64);
            let own = output(&sums, [n_own], DType::F32);
            let (count, dim) = units(&sums.client, n_own);
            let (from, to) = (argument(&own_sums), argument(&own));
            gradient_sum_piece::launch(&sums.client, count, dim, from, to, n_own as u32, factor);
            let pieces = output(&sums, [n_sums], DType::F32);
            communicator.all_gather(&own, &pieces, Element::F32);
            let floats = output(&sums, [n_values], DType::F32);
            let (count, dim) = units(&sums.client, n_values);
            let (from, to) = (argument(&pieces), argument(&floats));
            let (length, nan) = (n_values as u32, f32::NAN);
            gradient_sum_joined::launch(&sums.client, count, dim, from, to, length, nan);
            floats
        }

        fn part_of_any_rank(part: CubeTensor, communicator: Communicator) -> CubeTensor {
            let (part, [n_values]) = contiguous(part);
            let n_own = piece_len(n_values, communicator.world_size());
            let n_all = n_own * communicator.world_size();
            let padded = output(&part, [n_all], DType::F32);
            let (count, dim) = units(&part.client, n_all);
            let (from, to) = (argument(&part), argument(&padded));
            let (length, end) = (n_values as u32, n_all as u32);
            gradient_sum_padded::launch(&part.client, count, dim, from, to, length, end);
            // The sum of bits and zeros, as integers, is exact even for negative zeros and NaN.
            let own = output(&part, [n_own], DType::F32);
            communicator.reduce_scatter(&padded, &own, Element::I32);
            let all = output(&part, [n_all], DType::F32);
            communicator.all_gather(&own, &all, Element::F32);
            all
        }
    }

    /// The sums of all processes times `factor`, `[n_values]`, f32; NaN if a flag is set.
    ///
    /// - `sums`: the values, the flag and zeros, a multiple of the number of processes
    pub(in super::super) fn sum_of_ranks(
        sums: Tensor<1, Int>,
        n_values: usize,
        factor: f32,
        communicator: &Communicator,
    ) -> Result<Tensor<1>, NcclError> {
        let communicator = communicator.clone();
        let sums = sums.into_dispatch();
        let floats = Dispatch::sums_of_ranks(sums, n_values, factor, communicator.clone());
        communicator.check("ncclReduceScatter")?;
        Ok(Tensor::from_dispatch(floats))
    }

    /// The part of the process that has one; all others pass zeros.
    pub(in super::super) fn only_part(
        part: Tensor<1>,
        communicator: &Communicator,
    ) -> Result<Tensor<1>, NcclError> {
        let [n_values] = part.dims();
        let part = part.into_dispatch();
        let all = Dispatch::part_of_any_rank(part, communicator.clone());
        communicator.check("ncclReduceScatter")?;
        Ok(Tensor::from_dispatch(all).narrow(0, 0, n_values))
    }
}

#[cfg(feature = "cuda-source")]
pub(super) fn sources(sources: &mut crate::cube::source::Sources) {
    let dim = CubeDim::new_1d(crate::cube::launch::UNITS);
    let [sums, floats] = [0; 2].map(|_| sources.buffer());
    let (device, target, count) = sources.device();
    let kernel =
        gradient_sum_piece::create_dummy_kernel(device, target, count, dim, sums, floats, 1, 1.0);
    sources.add("", dim, kernel);
    let [pieces, floats] = [0; 2].map(|_| sources.buffer());
    let (device, target, count) = sources.device();
    let kernel = gradient_sum_joined::create_dummy_kernel(
        device,
        target,
        count,
        dim,
        pieces,
        floats,
        1,
        f32::NAN,
    );
    sources.add("", dim, kernel);
    let [part, padded] = [0; 2].map(|_| sources.buffer());
    let (device, target, count) = sources.device();
    let kernel =
        gradient_sum_padded::create_dummy_kernel(device, target, count, dim, part, padded, 1, 2);
    sources.add("", dim, kernel);
}
