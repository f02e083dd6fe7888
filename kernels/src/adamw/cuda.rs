//! AdamW on a GPU: one pass over parameters, gradient and moments, in place.
//!
//! The norm of the gradient is summed in two passes of a fixed order, so that a run repeats bit
//! by bit.

use burn::backend::DType;
use burn::tensor::Tensor;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::into_data_sync;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{AdamW, AdamWState, Numbers};
use crate::cube::launch::{UNITS, argument, contiguous, output, units, vector_size};
use crate::cube::reduce::cube_sum;

/// Cubes of the first pass of the norm: a few for each multiprocessor of a large GPU.
const SUMMANDS: usize = 512;

/// The factor of the gradient and what [`Numbers`] says of one update.
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
fn move_on<N: Size>(
    parameters: &mut [Vector<f32, N>],
    gradient: &[Vector<f32, N>],
    first_moment: &mut [Vector<f32, N>],
    second_moment: &mut [Vector<f32, N>],
    // Vectors.
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

/// Sum of the squares of every `CUBE_COUNT`-th block of units' values, one sum a cube.
#[cube(launch, create_dummy_kernel)]
fn sum_squares<N: Size>(
    x: &[Vector<f32, N>],
    sums: &mut [f32],
    // Vectors.
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
    let total = cube_sum(&mut scratch, squares.vector_sum(), units);
    if UNIT_POS == 0 {
        sums[CUBE_POS] = total;
    }
}

/// Root of the sum of `x`, by one cube.
#[cube(launch, create_dummy_kernel)]
fn root_of_sum(x: &[f32], root: &mut [f32], length: u32, #[comptime] units: u32) {
    let mut scratch = Shared::new_slice(units as usize);
    let mut sum = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < length as usize {
        sum += x[i];
        i += units as usize;
    }
    let total = cube_sum(&mut scratch, sum, units);
    if UNIT_POS == 0 {
        root[0] = total.sqrt();
    }
}

/// Parameters, gradient and moments, `[p]`, f32.
#[derive(Debug, Clone)]
pub struct Flat {
    /// Changed in place.
    pub parameters: CubeTensor,
    /// Read.
    pub gradient: CubeTensor,
    /// Changed in place.
    pub first_moment: CubeTensor,
    /// Changed in place.
    pub second_moment: CubeTensor,
}

/// Moves parameters and moments on by update number `step`, counted from 1, of the gradient times
/// `clip_factor`.
///
/// The buffers must be without holes; they are changed in place, whoever else holds them.
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
    move_on::launch(
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

/// [`AdamW::update`] into new memory; `None` if the tensors are on no GPU or under autodiff.
pub(super) fn update(
    adamw: &AdamW,
    (parameters, gradient): (&Tensor<1>, &Tensor<1>),
    state: &mut AdamWState,
    learning_rate: f64,
) -> Option<Tensor<1>> {
    let taken = |x: &Tensor<1>| x.clone().try_into_primitive::<CubeBackend>().ok();
    // Copies: the decoder still holds views of the parameters.
    let copied = |x: &Tensor<1>| Some(into_contiguous(taken(x)?).copy());
    let flat = Flat {
        parameters: copied(parameters)?,
        gradient: into_contiguous(taken(gradient)?),
        first_moment: copied(&state.first_moment)?,
        second_moment: copied(&state.second_moment)?,
    };
    state.step += 1;
    update_flat(adamw, &flat, [learning_rate, 1.0], state.step);
    let tensor = Tensor::from_primitive::<CubeBackend>;
    state.first_moment = tensor(flat.first_moment);
    state.second_moment = tensor(flat.second_moment);
    Some(tensor(flat.parameters))
}

/// [`super::global_norm`]; `None` if the tensor is on no GPU or under autodiff.
pub(super) fn norm_of(gradient: &Tensor<1>) -> Option<f64> {
    let gradient = gradient.clone().try_into_primitive::<CubeBackend>().ok()?;
    if gradient.meta.num_elements() == 0 {
        return Some(0.0);
    }
    into_data_sync(norm(gradient)).iter::<f64>().next()
}

/// Euclidean norm of `[p]`, f32, as `[1]`.
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
pub(crate) fn sources(texts: &mut crate::cube::source::Texts) {
    let dim = CubeDim::new_1d(UNITS);
    let [parameters, gradient, m, v] = [0; 4].map(|_| texts.buffer());
    let (device, target, count) = texts.device();
    let numbers = StepLaunch::new(1.0, 0.9, 0.999, 0.1, 0.001, 1e-8, 1.0, 1e-3, 1.0);
    let kernel = move_on::create_dummy_kernel(
        device, target, count, dim, 4, parameters, gradient, m, v, 1, numbers,
    );
    texts.add("", dim, kernel);
    let [x, sums] = [0; 2].map(|_| texts.buffer());
    let (device, target, count) = texts.device();
    let kernel = sum_squares::create_dummy_kernel(device, target, count, dim, 4, x, sums, 1, UNITS);
    texts.add("", dim, kernel);
    let [x, root] = [0; 2].map(|_| texts.buffer());
    let (device, target, count) = texts.device();
    let kernel = root_of_sum::create_dummy_kernel(device, target, count, dim, x, root, 1, UNITS);
    texts.add("", dim, kernel);
}
