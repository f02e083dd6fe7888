//! RMSNorm on a GPU: one cube per row, which it reads twice, the second time from cache.
//!
//! The weight is frozen: the backward pass computes only the gradient of `x`, and recomputes the
//! norm instead of storing it.

use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{RmsNormGradients, RmsNormOps};
use crate::cube::launch::{UNITS, argument, contiguous, cubes, element, output, vector_size};
use crate::cube::reduce::group_sum;

/// Arguments that both kernels read.
#[derive(CubeLaunch, CubeType)]
struct NormInputs<N: Size> {
    x: Box<[Vector<f32, N>]>,
    weight: Box<[Vector<f32, N>]>,
    rows: u32,
    /// Vectors per row.
    width: u32,
    eps: f32,
}

/// Index of a row's first vector, its number of vectors, and memory for sums over the cube.
#[cube]
fn cube_row<N: Size>(
    inputs: &NormInputs<N>,
    row: usize,
    #[comptime] units: u32,
) -> (usize, usize, Shared<[f32]>) {
    let width = inputs.width as usize;
    let base = row * width;
    let scratch = Shared::new_slice(units as usize);
    (base, width, scratch)
}

#[cube(launch, create_dummy_kernel)]
fn normalize<T: Float, N: Size>(
    inputs: &NormInputs<N>,
    y: &mut [Vector<T, N>],
    #[comptime] units: u32,
    #[define(T)] _dtype: ElemType,
) {
    let row = CUBE_POS;
    if row < inputs.rows as usize {
        let (base, width, mut scratch) = cube_row::<N>(inputs, row, units);
        let mut squares = Vector::<f32, N>::new(0.0);
        let mut i = UNIT_POS as usize;
        while i < width {
            let value = inputs.x[base + i];
            squares += value * value;
            i += units as usize;
        }
        let sum = group_sum(&mut scratch, squares.vector_sum(), units);
        let elements = width as f32 * squares.vector_size() as f32;
        let scale = Vector::<f32, N>::new(1.0 / (sum / elements + inputs.eps).sqrt());
        let mut i = UNIT_POS as usize;
        while i < width {
            y[base + i] = Vector::<T, N>::cast_from(inputs.x[base + i] * scale * inputs.weight[i]);
            i += units as usize;
        }
    }
}

/// Additional work of the gradient kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct GradientExtras {
    /// Also writes the norm.
    norm: bool,
    /// Adds another summand of the gradient.
    sum: bool,
}

#[cube(launch, create_dummy_kernel)]
fn normalize_dx<T: Float, N: Size>(
    inputs: &NormInputs<N>,
    dy: &[Vector<T, N>],
    added: &[Vector<f32, N>],
    dx: &mut [Vector<f32, N>],
    y: &mut [Vector<T, N>],
    #[comptime] units: u32,
    #[comptime] extras: GradientExtras,
    #[define(T)] _dtype: ElemType,
) {
    let row = CUBE_POS;
    if row < inputs.rows as usize {
        let (base, width, mut scratch) = cube_row::<N>(inputs, row, units);
        let mut squares = Vector::<f32, N>::new(0.0);
        let mut products = Vector::<f32, N>::new(0.0);
        let mut i = UNIT_POS as usize;
        while i < width {
            let value = inputs.x[base + i];
            squares += value * value;
            products += value * Vector::<f32, N>::cast_from(dy[base + i]) * inputs.weight[i];
            i += units as usize;
        }
        let sum = group_sum(&mut scratch, squares.vector_sum(), units);
        let product = group_sum(&mut scratch, products.vector_sum(), units);
        let elements = width as f32 * squares.vector_size() as f32;
        let scale = 1.0 / (sum / elements + inputs.eps).sqrt();
        let projection = Vector::<f32, N>::new(scale * scale * scale * product / elements);
        let scale = Vector::<f32, N>::new(scale);
        let mut i = UNIT_POS as usize;
        while i < width {
            let dy = Vector::<f32, N>::cast_from(dy[base + i]);
            let value = inputs.x[base + i];
            let mut gradient = scale * dy * inputs.weight[i] - projection * value;
            if comptime!(extras.norm) {
                y[base + i] = Vector::<T, N>::cast_from(value * scale * inputs.weight[i]);
            }
            if comptime!(extras.sum) {
                gradient += added[base + i];
            }
            dx[base + i] = gradient;
            i += units as usize;
        }
    }
}

/// Arguments for `rows` rows of `width` vectors.
fn norm_inputs<N: Size>(
    x: &CubeTensor,
    weight: &CubeTensor,
    [rows, width]: [usize; 2],
    eps: f32,
) -> NormInputsLaunch<N> {
    NormInputsLaunch::new(
        argument(x),
        argument(weight),
        rows as u32,
        width as u32,
        eps,
    )
}

/// Normalises rows of `x`, `[n, d]`, f32, to unit root mean square and multiplies them by `weight`,
/// `[d]`, f32; the result has dtype `dtype`.
fn rms_norm(x: CubeTensor, weight: CubeTensor, eps: f32, dtype: DType) -> CubeTensor {
    let (x, [n, d]) = contiguous(x);
    let (weight, [_]) = contiguous(weight);
    let y = output(&x, [n, d], dtype);
    if n * d == 0 {
        return y;
    }
    let vector = vector_size(4, &[d]);
    normalize::launch(
        &x.client,
        cubes(&x.client, n),
        CubeDim::new_1d(UNITS),
        vector,
        norm_inputs(&x, &weight, [n, d / vector], eps),
        argument(&y),
        UNITS,
        element(&y),
    );
    y
}

/// Gradient of `x`, f32, through [`rms_norm`], plus `added`; and, if `wanted`, the recomputed norm
/// in the dtype of `dy`.
pub(crate) fn gradient_and_norm(
    x: CubeTensor,
    weight: CubeTensor,
    eps: f32,
    dy: CubeTensor,
    added: Option<CubeTensor>,
    with_norm: bool,
) -> (CubeTensor, Option<CubeTensor>) {
    let (x, [n, d]) = contiguous(x);
    let (weight, [_]) = contiguous(weight);
    let (dy, [_, _]) = contiguous(dy);
    let added = added.map(|added| contiguous::<2>(added).0);
    let dx = output(&x, [n, d], DType::F32);
    let y = with_norm.then(|| output(&x, [n, d], dy.dtype));
    if n * d == 0 {
        return (dx, y);
    }
    let vector = vector_size(4, &[d]);
    normalize_dx::launch(
        &x.client,
        cubes(&x.client, n),
        CubeDim::new_1d(UNITS),
        vector,
        norm_inputs(&x, &weight, [n, d / vector], eps),
        argument(&dy),
        argument(added.as_ref().unwrap_or(&x)),
        argument(&dx),
        // If the norm is not wanted, this argument is not written.
        argument(y.as_ref().unwrap_or(&dy)),
        UNITS,
        GradientExtras {
            norm: with_norm,
            sum: added.is_some(),
        },
        element(&dy),
    );
    (dx, y)
}

impl RmsNormOps for CubeBackend {
    fn frozen_rms_norm(x: CubeTensor, weight: CubeTensor, eps: f32, output: DType) -> CubeTensor {
        rms_norm(x, weight, eps, output)
    }
}

impl RmsNormGradients for CubeBackend {
    fn rms_norm_gradient(
        x: CubeTensor,
        weight: CubeTensor,
        eps: f32,
        dy: CubeTensor,
    ) -> CubeTensor {
        gradient_and_norm(x, weight, eps, dy, None, false).0
    }
}

#[cfg(feature = "cuda-source")]
pub(crate) fn sources(sources: &mut crate::cube::source::Sources) {
    let dim = CubeDim::new_1d(UNITS);
    for element in crate::cube::source::ELEMENTS {
        let [x, weight, y] = [0; 3].map(|_| sources.buffer());
        let inputs = NormInputsLaunch::new(x, weight, 1, 1, 1e-5);
        let (device, target, count) = sources.device();
        let kernel = normalize::create_dummy_kernel(
            device, target, count, dim, 4, inputs, y, UNITS, element,
        );
        sources.add("", dim, kernel);
        for (form, is_more) in [("", false), ("with norm and sum", true)] {
            let extras = GradientExtras {
                norm: is_more,
                sum: is_more,
            };
            let [x, weight, dy, added, dx, y] = [0; 6].map(|_| sources.buffer());
            let inputs = NormInputsLaunch::new(x, weight, 1, 1, 1e-5);
            let (device, target, count) = sources.device();
            let kernel = normalize_dx::create_dummy_kernel(
                device, target, count, dim, 4, inputs, dy, added, dx, y, UNITS, extras, element,
            );
            sources.add(form, dim, kernel);
        }
    }
}
