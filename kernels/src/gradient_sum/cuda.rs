//! Sums of integers on a GPU.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, DType, Dispatch, backend_extension};
use burn::tensor::{Int, Tensor};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::LIMIT;
use crate::cube::launch::{argument, contiguous, output, units};

/// Adds `rint(part * scale)` to `sums`, or overwrites `sums` with it in the first part of a step.
/// Element `length` of `sums` is the flag.
#[cube(launch, create_dummy_kernel)]
fn gradient_sum_add(
    part: &[f32],
    sums: &mut [i64],
    length: u32,
    scale: f32,
    #[comptime] is_first: bool,
) {
    let i = ABSOLUTE_POS;
    if i < length as usize {
        let x = part[i];
        let rounded = i64::cast_from((x * scale).round());
        if comptime!(is_first) {
            sums[i] = rounded;
        } else {
            sums[i] += rounded;
        }
        if x.abs() < LIMIT {
            // In range: the flag stays as it is.
        } else {
            sums[length as usize] = 1;
        }
    }
}

/// Sets the flag of new sums and the sums after it to 0: element `length` to `end`.
#[cube(launch, create_dummy_kernel)]
fn gradient_sum_clear(sums: &mut [i64], length: u32, end: u32) {
    let i = length as usize + ABSOLUTE_POS;
    if i < end as usize {
        sums[i] = 0;
    }
}

/// The sums times `factor`, or NaN if the flag is set.
#[cube(launch, create_dummy_kernel)]
fn gradient_sum_floats(sums: &[i64], floats: &mut [f32], length: u32, factor: f32, nan: f32) {
    let i = ABSOLUTE_POS;
    if i < length as usize {
        let mut float = f32::cast_from(sums[i]) * factor;
        if sums[length as usize] != 0 {
            float = nan;
        }
        floats[i] = float;
    }
}

/// Operations of sums on a GPU; not differentiable.
#[backend_extension(Cube)]
pub(crate) trait GradientSumOps: Backend {
    /// The sums `[n_sums]` of a first part `[p]`: the values, the flag, and zeros.
    fn first_part(part: FloatTensor<Self>, scale: f32, n_sums: usize) -> IntTensor<Self>;

    /// Adds a part to the sums, in place.
    fn further_part(sums: IntTensor<Self>, part: FloatTensor<Self>, scale: f32) -> IntTensor<Self>;

    /// The first `p` sums as floats.
    fn sums_to_floats(sums: IntTensor<Self>, p: usize, factor: f32) -> FloatTensor<Self>;
}

fn launch_add(part: &CubeTensor, sums: &CubeTensor, scale: f32, is_first: bool) {
    let length = part.meta.num_elements();
    let (count, dim) = units(&part.client, length);
    let (part_argument, sums_argument) = (argument(part), argument(sums));
    gradient_sum_add::launch(
        &part.client,
        count,
        dim,
        part_argument,
        sums_argument,
        length as u32,
        scale,
        is_first,
    );
}

impl GradientSumOps for CubeBackend {
    fn first_part(part: CubeTensor, scale: f32, n_sums: usize) -> CubeTensor {
        let (part, [length]) = contiguous(part);
        let sums = output(&part, [n_sums], DType::I64);
        let (count, dim) = units(&part.client, n_sums - length);
        let (start, end) = (length as u32, n_sums as u32);
        gradient_sum_clear::launch(&part.client, count, dim, argument(&sums), start, end);
        launch_add(&part, &sums, scale, true);
        sums
    }

    fn further_part(sums: CubeTensor, part: CubeTensor, scale: f32) -> CubeTensor {
        let (part, [_]) = contiguous::<1>(part);
        launch_add(&part, &sums, scale, false);
        sums
    }

    fn sums_to_floats(sums: CubeTensor, length: usize, factor: f32) -> CubeTensor {
        let floats = output(&sums, [length], DType::F32);
        let (count, dim) = units(&sums.client, length);
        let nan = f32::NAN;
        gradient_sum_floats::launch(
            &sums.client,
            count,
            dim,
            argument(&sums),
            argument(&floats),
            length as u32,
            factor,
            nan,
        );
        floats
    }
}

/// Adds `part` to the sums. Without earlier sums, there are `n_sums` new ones.
pub(super) fn add(
    sums: Option<Tensor<1, Int>>,
    part: Tensor<1>,
    scale: f32,
    n_sums: usize,
) -> Tensor<1, Int> {
    let part = part.into_dispatch();
    Tensor::from_dispatch(match sums {
        None => Dispatch::first_part(part, scale, n_sums),
        Some(sums) => Dispatch::further_part(sums.into_dispatch(), part, scale),
    })
}

/// The first `p` sums times `factor`, f32.
pub(super) fn to_floats(sums: Tensor<1, Int>, p: usize, factor: f32) -> Tensor<1> {
    Tensor::from_dispatch(Dispatch::sums_to_floats(sums.into_dispatch(), p, factor))
}

#[cfg(feature = "cuda-source")]
pub(crate) fn sources(sources: &mut crate::cube::source::Sources) {
    let dim = CubeDim::new_1d(crate::cube::launch::UNITS);
    for is_first in [true, false] {
        let [part, sums] = [0; 2].map(|_| sources.buffer());
        let (device, target, count) = sources.device();
        let kernel = gradient_sum_add::create_dummy_kernel(
            device, target, count, dim, part, sums, 1, 1.0, is_first,
        );
        sources.add(if is_first { "first" } else { "further" }, dim, kernel);
    }
    let (device, target, count) = sources.device();
    let sums = sources.buffer();
    let kernel = gradient_sum_clear::create_dummy_kernel(device, target, count, dim, sums, 1, 2);
    sources.add("", dim, kernel);
    let [sums, floats] = [0; 2].map(|_| sources.buffer());
    let (device, target, count) = sources.device();
    let kernel = gradient_sum_floats::create_dummy_kernel(
        device,
        target,
        count,
        dim,
        sums,
        floats,
        1,
        1.0,
        f32::NAN,
    );
    sources.add("", dim, kernel);
    super::nccl::sources(sources);
}
