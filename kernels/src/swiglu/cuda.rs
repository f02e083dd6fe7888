//! SwiGLU on a GPU: each unit has one vector of the gate and the matching one of `up`.

use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{SwigluGradients, SwigluOps};
use crate::cube::launch::{argument, contiguous, element, output, units, vector_size};

#[cube]
fn sigmoid<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0);
    let zero = Vector::<f32, N>::new(0.0);
    one / (one + (zero - x).exp())
}

#[cube(launch, create_dummy_kernel)]
fn gate<T: Float, N: Size>(
    gate_up: &[Vector<T, N>],
    y: &mut [Vector<T, N>],
    rows: u32,
    // Vectors per row of `y`.
    width: u32,
    #[define(T)] _dtype: ElemType,
) {
    let width = width as usize;
    let position = ABSOLUTE_POS;
    if position < rows as usize * width {
        let first = position / width * 2 * width + position % width;
        let gate = Vector::<f32, N>::cast_from(gate_up[first]);
        let up = Vector::<f32, N>::cast_from(gate_up[first + width]);
        y[position] = Vector::<T, N>::cast_from(gate * sigmoid::<N>(gate) * up);
    }
}

#[cube(launch, create_dummy_kernel)]
fn gate_gradient<T: Float, N: Size>(
    gate_up: &[Vector<T, N>],
    dy: &[Vector<T, N>],
    d_gate_up: &mut [Vector<T, N>],
    y: &mut [Vector<T, N>],
    rows: u32,
    // Vectors per row of `dy`.
    width: u32,
    // Whether the gated output is also written again.
    #[comptime] gates: bool,
    #[define(T)] _dtype: ElemType,
) {
    let width = width as usize;
    let position = ABSOLUTE_POS;
    if position < rows as usize * width {
        let one = Vector::<f32, N>::new(1.0);
        let first = position / width * 2 * width + position % width;
        let gate = Vector::<f32, N>::cast_from(gate_up[first]);
        let up = Vector::<f32, N>::cast_from(gate_up[first + width]);
        let dy = Vector::<f32, N>::cast_from(dy[position]);
        let sigmoid = sigmoid::<N>(gate);
        let slope = sigmoid * (one + gate * (one - sigmoid));
        d_gate_up[first] = Vector::<T, N>::cast_from(dy * up * slope);
        d_gate_up[first + width] = Vector::<T, N>::cast_from(dy * gate * sigmoid);
        if comptime!(gates) {
            y[position] = Vector::<T, N>::cast_from(gate * sigmoid * up);
        }
    }
}

/// `silu(gate) * up`, `[n, f]`, for rows `[gate, up]`, `[n, 2 f]`.
fn swiglu(gate_up: CubeTensor) -> CubeTensor {
    let (gate_up, [n, both]) = contiguous(gate_up);
    let width = both / 2;
    let y = output(&gate_up, [n, width], gate_up.dtype);
    if n * width == 0 {
        return y;
    }
    let vector = vector_size(16 / gate_up.dtype.size(), &[width]);
    let (count, dim) = units(&gate_up.client, n * width / vector);
    gate::launch(
        &gate_up.client,
        count,
        dim,
        vector,
        argument(&gate_up),
        argument(&y),
        n as u32,
        (width / vector) as u32,
        element(&y),
    );
    y
}

/// Gradient of `gate_up` through [`swiglu`], `[n, 2 f]`; and, if `wanted`, the recomputed output.
pub(crate) fn gradient_and_gated(
    gate_up: CubeTensor,
    dy: CubeTensor,
    with_output: bool,
) -> (CubeTensor, Option<CubeTensor>) {
    let (gate_up, [n, both]) = contiguous(gate_up);
    let (dy, [_, width]) = contiguous(dy);
    let d_gate_up = output(&gate_up, [n, both], gate_up.dtype);
    let y = with_output.then(|| output(&gate_up, [n, width], gate_up.dtype));
    if n * width == 0 {
        return (d_gate_up, y);
    }
    let vector = vector_size(16 / gate_up.dtype.size(), &[width]);
    let (count, dim) = units(&gate_up.client, n * width / vector);
    gate_gradient::launch(
        &gate_up.client,
        count,
        dim,
        vector,
        argument(&gate_up),
        argument(&dy),
        argument(&d_gate_up),
        // If the output is not wanted, this argument is not written.
        argument(y.as_ref().unwrap_or(&dy)),
        n as u32,
        (width / vector) as u32,
        with_output,
        element(&d_gate_up),
    );
    (d_gate_up, y)
}

impl SwigluOps for CubeBackend {
    fn gated_silu(gate_up: CubeTensor) -> CubeTensor {
        swiglu(gate_up)
    }
}

impl SwigluGradients for CubeBackend {
    fn gated_silu_gradient(gate_up: CubeTensor, dy: CubeTensor) -> CubeTensor {
        gradient_and_gated(gate_up, dy, false).0
    }
}

#[cfg(feature = "cuda-source")]
pub(crate) fn sources(sources: &mut crate::cube::source::Sources) {
    let dim = CubeDim::new_1d(crate::cube::launch::UNITS);
    for element in crate::cube::source::ELEMENTS {
        let vector = 16 / element.size();
        let [gate_up, y] = [0; 2].map(|_| sources.buffer());
        let (device, target, count) = sources.device();
        let kernel = gate::create_dummy_kernel(
            device, target, count, dim, vector, gate_up, y, 1, 1, element,
        );
        sources.add("", dim, kernel);
        for (form, gates) in [("", false), ("with gated", true)] {
            let [gate_up, dy, d_gate_up, y] = [0; 4].map(|_| sources.buffer());
            let (device, target, count) = sources.device();
            let kernel = gate_gradient::create_dummy_kernel(
                device, target, count, dim, vector, gate_up, dy, d_gate_up, y, 1, 1, gates, element,
            );
            sources.add(form, dim, kernel);
        }
    }
}
