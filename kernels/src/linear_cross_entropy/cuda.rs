//! The rows of a cross entropy on a GPU: computes losses from logits and replaces the logits by
//! their gradients.
//!
//! One cube per row reads the logits twice: first for the maximum and the sum of exponentials,
//! which is rescaled whenever the maximum grows, then to write the gradient.

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, DType, Dispatch, backend_extension};
use burn::tensor::Tensor;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::Supervision;
use crate::cube::launch::{
    UNITS, argument, contiguous, cubes, element, output, upload, vector_size,
};
use crate::cube::reduce::{cube_max, group_sum};

/// Lower than every finite logit; its exponential is zero relative to any of them.
const LOWEST: f32 = -3.0e38;

#[cube(launch, create_dummy_kernel)]
fn row_losses<T: Float, N: Size>(
    logits: &mut [Vector<T, N>],
    targets: &[u32],
    weights: &[f32],
    losses: &mut [f32],
    rows: u32,
    // Vectors per row.
    width: u32,
    gradient_scale: f32,
    #[comptime] units: u32,
    #[comptime] gradients: bool,
    #[define(T)] _dtype: ElemType,
) {
    let row = CUBE_POS;
    if row < rows as usize {
        let width = width as usize;
        let base = row * width;
        let mut scratch = Shared::new_slice(units as usize);
        let mut largest = Vector::<f32, N>::new(LOWEST);
        let mut sums = Vector::<f32, N>::new(0.0);
        let mut i = UNIT_POS as usize;
        while i < width {
            let value = Vector::<f32, N>::cast_from(logits[base + i]);
            let grown = max(largest, value);
            sums = sums * (largest - grown).exp() + (value - grown).exp();
            largest = grown;
            i += units as usize;
        }
        let size = largest.vector_size();
        let mut own = largest.extract(0usize);
        #[unroll]
        for j in 1..size {
            own = max(own, largest.extract(j));
        }
        let maximum = cube_max(&mut scratch, own, units);
        let rescaled = sums * (largest - Vector::<f32, N>::new(maximum)).exp();
        let sum = group_sum(&mut scratch, rescaled.vector_sum(), units);
        let log_sum = maximum + sum.ln();

        let target = targets[row] as usize;
        let weight = weights[row];
        if UNIT_POS == target as u32 / size as u32 % units {
            let vector = Vector::<f32, N>::cast_from(logits[base + target / size]);
            let mut logit = vector.extract(0usize);
            #[unroll]
            for j in 1..size {
                if target % size == j {
                    logit = vector.extract(j);
                }
            }
            losses[row] = weight * (log_sum - logit);
        }
        if comptime!(gradients) {
            let scale = weight * gradient_scale;
            let shift = Vector::<f32, N>::new(log_sum);
            let mut i = UNIT_POS as usize;
            while i < width {
                let value = Vector::<f32, N>::cast_from(logits[base + i]);
                let mut gradient = (value - shift).exp() * Vector::<f32, N>::new(scale);
                if i == target / size {
                    #[unroll]
                    for j in 0..size {
                        if target % size == j {
                            gradient.insert(j, gradient.extract(j) - scale);
                        }
                    }
                }
                logits[base + i] = Vector::<T, N>::cast_from(gradient);
                i += units as usize;
            }
        }
    }
}

/// Losses of rows, `weight * (logsumexp(logits) - logits[target])`, `[m]`, f32.
///
/// With a `gradient_scale`, `logits`, `[m, v]`, f32 or bf16, are replaced by the gradient of
/// `gradient_scale` times the sum of losses. `targets`, `[m]`, are u32, `weights`, `[m]`, f32.
pub fn losses(
    logits: CubeTensor,
    targets: CubeTensor,
    weights: CubeTensor,
    gradient_scale: Option<f32>,
) -> [CubeTensor; 2] {
    let (logits, [m, v]) = contiguous(logits);
    let losses = output(&logits, [m], DType::F32);
    if m == 0 {
        return [losses, logits];
    }
    let vector = vector_size(16 / logits.dtype.size(), &[v]);
    row_losses::launch(
        &logits.client,
        cubes(&logits.client, m),
        CubeDim::new_1d(UNITS),
        vector,
        argument(&logits),
        argument(&targets),
        argument(&weights),
        argument(&losses),
        m as u32,
        (v / vector) as u32,
        gradient_scale.unwrap_or(0.0),
        UNITS,
        gradient_scale.is_some(),
        element(&logits),
    );
    [losses, logits]
}

/// Loss operations that a GPU implements itself; not differentiable.
#[backend_extension(Cube)]
pub(crate) trait LossOps: Backend {
    /// Losses, `[m]`, of logits, `[m, v]`, and the logits or their gradient; see [`losses`].
    fn losses_of_rows(
        logits: FloatTensor<Self>,
        supervision: Supervision,
        gradient_scale: Option<f32>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// `x wᵀ`, `[m, v]`, from `x`, `[m, d]`, and the head, `[v, d]`.
    fn head_logits(x: FloatTensor<Self>, head: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `dy w`, `[m, d]`, from the gradient of logits, `[m, v]`, and the head.
    fn head_gradient(dy: FloatTensor<Self>, head: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// `x w` or `x wᵀ`, by cuBLASLt if it is available, otherwise by Burn.
fn product(x: CubeTensor, head: CubeTensor, transposed: bool) -> CubeTensor {
    #[cfg(feature = "cuda")]
    if let Some(y) = crate::cublaslt::product(&x, &head, transposed) {
        return y;
    }
    let head = if transposed {
        CubeBackend::float_transpose(head)
    } else {
        head
    };
    CubeBackend::float_matmul(x, head)
}

impl LossOps for CubeBackend {
    fn head_logits(x: CubeTensor, head: CubeTensor) -> CubeTensor {
        product(x, head, true)
    }

    fn head_gradient(dy: CubeTensor, head: CubeTensor) -> CubeTensor {
        product(dy, head, false)
    }

    fn losses_of_rows(
        logits: CubeTensor,
        supervision: Supervision,
        gradient_scale: Option<f32>,
    ) -> (CubeTensor, CubeTensor) {
        let targets = upload(&logits, &supervision.targets);
        let weights = supervision.weights.iter();
        let bits: Vec<u32> = weights.map(|weight| weight.to_bits()).collect();
        let weights = CubeTensor {
            dtype: DType::F32,
            ..upload(&logits, &bits)
        };
        let [losses, logits] = losses(logits, targets, weights, gradient_scale);
        (losses, logits)
    }
}

/// `hidden headᵀ` for tensors on a GPU that are not part of an autodiff graph, in their dtype.
pub(super) fn logits(hidden: Tensor<2>, head: &Tensor<2>) -> Tensor<2> {
    let head = head.clone().into_dispatch();
    Tensor::from_dispatch(Dispatch::head_logits(hidden.into_dispatch(), head))
}

/// The loss and, with a gradient scale, the gradient of `hidden`, `[m, d]`, otherwise `[0, d]`, for
/// tensors on a GPU that are not part of an autodiff graph.
///
/// All chunks are queued before the first loss is read back.
pub(super) fn chunked_loss(
    hidden: &Tensor<2>,
    head: &Tensor<2>,
    supervision: &Supervision,
    gradient_scale: Option<f64>,
    chunk_rows: usize,
) -> (f64, Tensor<2>) {
    let [m, d] = hidden.dims();
    let scale = gradient_scale.map(|scale| scale as f32);
    let (mut sums, mut gradients) = (Vec::new(), Vec::new());
    for start in (0..m).step_by(chunk_rows) {
        let part = supervision.part(start..(start + chunk_rows).min(m));
        let rows = hidden.clone().narrow(0, start, part.rows.len());
        let head = || head.clone().into_dispatch();
        let logits = Dispatch::head_logits(rows.into_dispatch(), head());
        let (losses, logits) = Dispatch::losses_of_rows(logits, part, scale);
        sums.push(Tensor::<1>::from_dispatch(losses));
        if scale.is_some() {
            let gradient = Dispatch::head_gradient(logits, head());
            gradients.push(Tensor::<2>::from_dispatch(gradient));
        }
    }
    let values = |losses: Tensor<1>| losses.into_data().iter::<f64>().sum::<f64>();
    let loss_sum = sums.into_iter().map(values).sum();
    let gradient = if gradients.is_empty() {
        Tensor::empty([0, d], &hidden.device())
    } else {
        Tensor::cat(gradients, 0)
    };
    (loss_sum, gradient)
}

#[cfg(feature = "cuda-source")]
pub(crate) fn sources(sources: &mut crate::cube::source::Sources) {
    let dim = CubeDim::new_1d(UNITS);
    for element in crate::cube::source::ELEMENTS {
        for gradients in [false, true] {
            let [logits, targets, weights, losses] = [0; 4].map(|_| sources.buffer());
            let (device, target, count) = sources.device();
            let vector = 16 / element.size();
            let kernel = row_losses::create_dummy_kernel(
                device, target, count, dim, vector, logits, targets, weights, losses, 1, 1, 1.0,
                UNITS, gradients, element,
            );
            let form = if gradients {
                "with gradient"
            } else {
                "losses alone"
            };
            sources.add(form, dim, kernel);
        }
    }
}
