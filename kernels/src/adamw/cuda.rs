//! AdamW on a GPU: one pass over parameters, gradient and moments, in place.
//!
//! The gradient norm is summed in two passes of fixed order, so a run is bitwise reproducible.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, DType, Dispatch, backend_extension};
use burn::tensor::Tensor;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{AdamW, AdamWState, Numbers};
use crate::cube::launch::{UNITS, argument, contiguous, output, units, vector_size};
use crate::cube::reduce::group_sum;

/// Cubes of the norm's first pass: a few for each multiprocessor of a large GPU.
const SUMMANDS: usize = 512;

/// Gradient clipping factor and the [`Numbers`] of one update.
#[derive(CubeLaunch, CubeType, Clone, Copy)]
struct Step {
    clip_factor: f32,
    beta1: f32,
    beta2: f32,
    gain1: f32,
    gain2: f32,
    eps: f32,
    shrink: f32,
    step_size: f32,
    root_correction: f32,
}

#[cube(launch, create_dummy_kernel)]
fn adamw_step<N: Size>(
    parameters: &mut [Vector<f32, N>],
    gradient: &[Vector<f32, N>],
    first_moment: &mut [Vector<f32, N>],
    second_moment: &mut [Vector<f32, N>],
    // Length in vectors.
    length: u32,
    numbers: Step,
) {
    let i = ABSOLUTE_POS;
    if i < length as usize {
        let gain1 = Vector::<f32, N>::new(numbers.gain1);
        let gain2 = Vector::<f32, N>::new(numbers.gain2);
        let beta1 = Vector::<f32, N>::new(numbers.beta1);
        let beta2 = Vector::<f32, N>::new(numbers.beta2);
        let g = gradient[i] * Vector::<f32, N>::new(numbers.clip_factor);
        let m = first_moment[i] * beta1 + g * gain1;
        let v = second_moment[i] * beta2 + g * g * gain2;
        let root = v.sqrt() * Vector::<f32, N>::new(numbers.root_correction);
        let step = m / (root + Vector::<f32, N>::new(numbers.eps));
        let shrunk = parameters[i] * Vector::<f32, N>::new(numbers.shrink);
        first_moment[i] = m;
        second_moment[i] = v;
        parameters[i] = shrunk - step * Vector::<f32, N>::new(numbers.step_size);
    }
}

/// Sums of squares: each cube adds every `CUBE_COUNT`-th block of `units` vectors and writes one
/// sum.
#[cube(launch, create_dummy_kernel)]
fn sum_squares<N: Size>(
    x: &[Vector<f32, N>],
    sums: &mut [f32],
    // Length in vectors.
    length: u32,
    #[comptime] units: u32,
) {
    let mut scratch = Shared::new_slice(units as usize);
    let mut squares = Vector::<f32, N>::new(0.0);
    let mut i = ABSOLUTE_POS;
    while i < length as usize {
        squares += x[i] * x[i];
        i += CUBE_COUNT * units as usize;
    }
    let total = group_sum(&mut scratch, squares.vector_sum(), units);
    if UNIT_POS == 0 {
        sums[CUBE_POS] = total;
    }
}

/// Square root of the sum of `x`, computed by one cube.
#[cube(launch, create_dummy_kernel)]
fn root_of_sum(x: &[f32], root: &mut [f32], length: u32, #[comptime] units: u32) {
    let mut scratch = Shared::new_slice(units as usize);
    let mut sum = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < length as usize {
        sum += x[i];
        i += units as usize;
    }
    let total = group_sum(&mut scratch, sum, units);
    if UNIT_POS == 0 {
        root[0] = total.sqrt();
    }
}

/// Parameters, gradient and moments, `[p]`, f32.
#[derive(Debug, Clone)]
pub struct Flat {
    /// Updated in place.
    pub parameters: CubeTensor,
    /// Read only.
    pub gradient: CubeTensor,
    /// Updated in place.
    pub first_moment: CubeTensor,
    /// Updated in place.
    pub second_moment: CubeTensor,
}

/// Applies update number `step` (from 1) to parameters and moments, with the gradient multiplied by
/// `clip_factor`.
///
/// The buffers must be contiguous. They are changed in place, even if other tensors share them.
pub fn update_flat(adamw: &AdamW, flat: &Flat, [learning_rate, clip_factor]: [f64; 2], step: u64) {
    let length = flat.parameters.meta.num_elements();
    if length == 0 {
        return;
    }
    let vector = vector_size(4, &[length]);
    let (count, dim) = units(&flat.parameters.client, length / vector);
    let numbers = Numbers::new(adamw, step, learning_rate);
    let numbers = StepLaunch::new(
        clip_factor as f32,
        numbers.decay[0],
        numbers.decay[1],
        numbers.gain[0],
        numbers.gain[1],
        numbers.eps,
        numbers.shrink,
        numbers.step_size,
        numbers.root_correction,
    );
    adamw_step::launch(
        &flat.parameters.client,
        count,
        dim,
        vector,
        argument(&flat.parameters),
        argument(&flat.gradient),
        argument(&flat.first_moment),
        argument(&flat.second_moment),
        (length / vector) as u32,
        numbers,
    );
}

/// AdamW operations that a GPU implements itself; not differentiable.
#[backend_extension(Cube)]
pub(crate) trait AdamWOps: Backend {
    /// Parameters and both moments after update number `step`, in new memory, because the decoder
    /// still holds views of the parameters.
    fn adamw_update(
        parameters: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        first_moment: FloatTensor<Self>,
        second_moment: FloatTensor<Self>,
        adamw: AdamW,
        learning_rate: f64,
        step: u64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// Same contract as [`norm`].
    fn gradient_norm(x: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl AdamWOps for CubeBackend {
    fn adamw_update(
        parameters: CubeTensor,
        gradient: CubeTensor,
        first_moment: CubeTensor,
        second_moment: CubeTensor,
        adamw: AdamW,
        learning_rate: f64,
        step: u64,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let copied = |x| into_contiguous(x).copy();
        let flat = Flat {
            parameters: copied(parameters),
            gradient: into_contiguous(gradient),
            first_moment: copied(first_moment),
            second_moment: copied(second_moment),
        };
        update_flat(&adamw, &flat, [learning_rate, 1.0], step);
        (flat.parameters, flat.first_moment, flat.second_moment)
    }

    fn gradient_norm(x: CubeTensor) -> CubeTensor {
        norm(x)
    }
}

/// [`AdamW::update`] for tensors on a GPU that are not part of an autodiff graph.
pub(super) fn update(
    adamw: &AdamW,
    [parameters, gradient]: [Tensor<1>; 2],
    state: &mut AdamWState,
    learning_rate: f64,
) -> Tensor<1> {
    state.step += 1;
    let [first, second] = [&state.first_moment, &state.second_moment].map(Tensor::clone);
    let (parameters, first, second) = Dispatch::adamw_update(
        parameters.into_dispatch(),
        gradient.into_dispatch(),
        first.into_dispatch(),
        second.into_dispatch(),
        *adamw,
        learning_rate,
        state.step,
    );
    let [parameters, first, second] = [parameters, first, second].map(Tensor::from_dispatch);
    (state.first_moment, state.second_moment) = (first, second);
    parameters
}

/// [`super::global_norm`] for a tensor on a GPU that is not part of an autodiff graph.
pub(super) fn global_norm(gradient: &Tensor<1>) -> f64 {
    if gradient.dims() == [0] {
        return 0.0;
    }
    let norm = Dispatch::gradient_norm(gradient.clone().into_dispatch());
    f64::from(Tensor::<1>::from_dispatch(norm).into_scalar::<f32>())
}

/// Euclidean norm of an f32 tensor `[p]`, as `[1]`.
pub fn norm(x: CubeTensor) -> CubeTensor {
    let (x, [length]) = contiguous(x);
    let vector = vector_size(4, &[length]);
    let summands = (length / vector)
        .div_ceil(UNITS as usize)
        .clamp(1, SUMMANDS);
    let sums = output(&x, [summands], DType::F32);
    sum_squares::launch(
        &x.client,
        CubeCount::Static(summands as u32, 1, 1),
        CubeDim::new_1d(UNITS),
        vector,
        argument(&x),
        argument(&sums),
        (length / vector) as u32,
        UNITS,
    );
    let root = output(&x, [1], DType::F32);
    root_of_sum::launch(
        &x.client,
        CubeCount::Static(1, 1, 1),
        CubeDim::new_1d(UNITS),
        argument(&sums),
        argument(&root),
        summands as u32,
        UNITS,
    );
    root
}

#[cfg(feature = "cuda-source")]
pub(crate) fn sources(sources: &mut crate::cube::source::Sources) {
    let dim = CubeDim::new_1d(UNITS);
    let [parameters, gradient, m, v] = [0; 4].map(|_| sources.buffer());
    let (device, target, count) = sources.device();
    let numbers = StepLaunch::new(1.0, 0.9, 0.999, 0.1, 0.001, 1e-8, 1.0, 1e-3, 1.0);
    let kernel = adamw_step::create_dummy_kernel(
        device, target, count, dim, 4, parameters, gradient, m, v, 1, numbers,
    );
    sources.add("", dim, kernel);
    let [x, sums] = [0; 2].map(|_| sources.buffer());
    let (device, target, count) = sources.device();
    let kernel = sum_squares::create_dummy_kernel(device, target, count, dim, 4, x, sums, 1, UNITS);
    sources.add("", dim, kernel);
    let [x, root] = [0; 2].map(|_| sources.buffer());
    let (device, target, count) = sources.device();
    let kernel = root_of_sum::create_dummy_kernel(device, target, count, dim, x, root, 1, UNITS);
    sources.add("", dim, kernel);
}
