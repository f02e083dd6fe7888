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

#[cube(launch, create_dummy_kernel)]
fn normalize<T: Float, N: Size>(
    x: &[Vector<f32, N>],
    weight: &[Vector<f32, N>],
    y: &mut [Vector<T, N>],
    rows: u32,
    // Vectors per row.
    width: u32,
    eps: f32,
    #[comptime] units: u32,
    #[define(T)] _dtype: ElemType,
) {
    let row = CUBE_POS;
    if row < rows as usize {
        let width = width as usize;
        let base = row * width;
        let mut scratch = Shared::new_slice(units as usize);
        let mut squares = Vector::<f32, N>::new(0.0);
        let mut i = UNIT_POS as usize;
        while i < width {
            let value = x[base + i];
            squares += value * value;
            i += units as usize;
        }
        let sum = group_sum(&mut scratch, squares.vector_sum(), units);
        let elements = width as f32 * squares.vector_size() as f32;
        let scale = Vector::<f32, N>::new(1.0 / (sum / elements + eps).sqrt());
        let mut i = UNIT_POS as usize;
        while i < width {
            y[base + i] = Vector::<T, N>::cast_from(x[base + i] * scale * weight[i]);
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
    x: &[Vector<f32, N>],
    weight: &[Vector<f32, N>],
    dy: &[Vector<T, N>],
    added: &[Vector<f32, N>],
    dx: &mut [Vector<f32, N>],
    y: &mut [Vector<T, N>],
    rows: u32,
    // Vectors per row.
    width: u32,
    eps: f32,
    #[comptime] extras: GradientExtras,
    #[comptime] units: u32,
    #[define(T)] _dtype: ElemType,
) {
    let row = CUBE_POS;
    if row < rows as usize {
        let width = width as usize;
        let base = row * width;
        let mut scratch = Shared::new_slice(units as usize);
        let mut squares = Vector::<f32, N>::new(0.0);
        let mut products = Vector::<f32, N>::new(0.0);
        let mut i = UNIT_POS as usize;
        while i < width {
            let value = x[base + i];
            squares += value * value;
            products += value * Vector::<f32, N>::cast_from(dy[base + i]) * weight[i];
            i += units as usize;
        }
        let sum = group_sum(&mut scratch, squares.vector_sum(), units);
        let product = group_sum(&mut scratch, products.vector_sum(), units);
        let elements = width as f32 * squares.vector_size() as f32;
        let scale = 1.0 / (sum / elements + eps).sqrt();
        let projection = Vector::<f32, N>::new(scale * scale * scale * product / elements);
        let scale = Vector::<f32, N>::new(scale);
        let mut i = UNIT_POS as usize;
        while i < width {
            let dy = Vector::<f32, N>::cast_from(dy[base + i]);
            let value = x[base + i];
            let mut gradient = scale * dy * weight[i] - projection * value;
            if comptime!(extras.norm) {
                y[base + i] = Vector::<T, N>::cast_from(value * scale * weight[i]);
            }
            if comptime!(extras.sum) {
                gradient += added[base + i];
            }
            dx[base + i] = gradient;
            i += units as usize;
        }
    }
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
        argument(&x),
        argument(&weight),
        argument(&y),
        n as u32,
        (d / vector) as u32,
        eps,
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
        argument(&x),
        argument(&weight),
        argument(&dy),
        argument(added.as_ref().unwrap_or(&x)),
        argument(&dx),
        // If the norm is not wanted, this argument is not written.
        argument(y.as_ref().unwrap_or(&dy)),
        n as u32,
        (d / vector) as u32,
        eps,
        GradientExtras {
            norm: with_norm,
            sum: added.is_some(),
        },
        UNITS,
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
        let (device, target, count) = sources.device();
        let kernel = normalize::create_dummy_kernel(
            device, target, count, dim, 4, x, weight, y, 1, 1, 1e-5, UNITS, element,
        );
        sources.add("", dim, kernel);
        for (form, is_more) in [("", false), ("with norm and sum", true)] {
            let extras = GradientExtras {
                norm: is_more,
                sum: is_more,
            };
            let [x, weight, dy, added, dx, y] = [0; 6].map(|_| sources.buffer());
            let (device, target, count) = sources.device();
            let kernel = normalize_dx::create_dummy_kernel(
                device, target, count, dim, 4, x, weight, dy, added, dx, y, 1, 1, 1e-5, extras,
                UNITS, element,
            );
            sources.add(form, dim, kernel);
        }
    }
}
