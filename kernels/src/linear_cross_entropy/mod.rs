//! The loss and its gradient from the last hidden states, without materialising all logits.
//!
//! Only supervised rows reach the LM head, one chunk of rows at a time; instead of building a
//! graph, each chunk's logits are replaced by their gradient.

mod cpu;
#[cfg(feature = "cube")]
pub mod cuda;
pub mod distilled;
pub mod reference;
pub mod trained;

use burn::tensor::{DType, Device, Int, Tensor, TensorData, activation};

use crate::RowIndices;
use crate::cpu::buffer::plain;
use crate::frozen_weight::{FrozenWeight, Storage, with_matrix};
#[cfg(feature = "cube")]
use crate::route::is_served_by_gpu;

/// Callers pass this dtype if the head is packed.
const SAME_DTYPE: &str = "hidden states in the head's dtype";

/// The supervised rows of a micro-batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Supervision {
    /// Row index in the hidden states, increasing.
    pub rows: Vec<usize>,
    /// Token that the row predicts.
    pub targets: Vec<u32>,
    /// Weight of that prediction; never 0.
    pub weights: Vec<f32>,
}

impl Supervision {
    /// Selects the rows with a non-zero weight; row `t` predicts `targets[t]`.
    pub fn new(targets: &[u32], loss_weights: &[f32]) -> Self {
        let rows: Vec<usize> = (0..targets.len())
            .filter(|&t| loss_weights[t] != 0.0)
            .collect();
        Self {
            targets: rows.iter().map(|&t| targets[t]).collect(),
            weights: rows.iter().map(|&t| loss_weights[t]).collect(),
            rows,
        }
    }

    /// Only the entries `range`.
    fn part(&self, range: std::ops::Range<usize>) -> Self {
        Self {
            rows: self.rows[range.clone()].to_vec(),
            targets: self.targets[range.clone()].to_vec(),
            weights: self.weights[range].to_vec(),
        }
    }

    /// The row indices as the argument of [`select_rows`](crate::select_rows::select_rows).
    ///
    /// # Panics
    ///
    /// If there are 2^32 - 1 rows or more.
    pub fn row_numbers(&self) -> RowIndices {
        let number = |&row: &usize| u32::try_from(row).expect("fewer rows than 2^32");
        RowIndices::new(&self.rows.iter().map(number).collect::<Vec<_>>())
    }
}

/// Loss and gradient.
#[derive(Debug, Clone)]
pub struct LossAndGradient {
    /// Weighted sum of the negative log-likelihoods, in nats.
    pub loss_sum: f64,
    /// Gradient of `loss_sum * gradient_scale` with respect to the hidden states, `[m, d]`.
    pub d_hidden: Tensor<2>,
}

/// Sums `weight * (logsumexp(logits) - logits[target])` over rows, with the gradient of `hidden`.
///
/// `hidden` has only the supervised rows, in the order of `supervision`. The sum is not divided, so
/// that micro-batches of a step add up to the gradient of the whole step. `gradient_scale` is `1 /
/// sum_loss_weights` of the whole step. `chunk_rows` limits the logits in memory to `chunk_rows *
/// v`, and has no other effect.
///
/// # Shapes
///
/// - `hidden`: `[m, d]`, without autodiff, in the head's compute dtype
/// - `head`: `[v, d]`, frozen
/// - returns: gradient `[m, d]`, in the dtype of `hidden`
///
/// # Source
///
/// `torch.nn.functional.cross_entropy(reduction="none")`, multiplied by the weights and summed.
pub fn linear_cross_entropy(
    hidden: Tensor<2>,
    head: &FrozenWeight,
    supervision: &Supervision,
    gradient_scale: f64,
    chunk_rows: usize,
) -> LossAndGradient {
    crate::operation!("linear_cross_entropy");
    let device = hidden.device();
    let [m, d] = hidden.dims();
    let head = match head.storage() {
        Storage::Packed(packed) => {
            let hidden = plain(&hidden, packed.dtype()).expect(SAME_DTYPE);
            return with_matrix!(packed, head => {
                let chunks = cpu::Chunks { hidden: hidden.numbers(), head, chunk_rows };
                let (loss_sum, d_hidden) = chunks.loss_and_gradient(supervision, gradient_scale);
                let d_hidden = TensorData::new(d_hidden, [m, d]);
                let d_hidden = Tensor::from_data(d_hidden, (&device, packed.dtype()));
                LossAndGradient { loss_sum, d_hidden }
            });
        }
        Storage::Quantised(_) => {
            let head = head.dequantised();
            return linear_cross_entropy(hidden, &head, supervision, gradient_scale, chunk_rows);
        }
        Storage::Dense(head) => head,
    };
    #[cfg(feature = "cube")]
    if is_served_by_gpu(&hidden) {
        let scale = Some(gradient_scale);
        let (loss_sum, d_hidden) =
            cuda::chunked_loss(&hidden, head, supervision, scale, chunk_rows);
        return LossAndGradient { loss_sum, d_hidden };
    }
    let mut loss_sum = 0.0;
    let mut gradients = Vec::with_capacity(m.div_ceil(chunk_rows));
    for start in (0..m).step_by(chunk_rows) {
        let end = (start + chunk_rows).min(m);
        let part = supervision.part(start..end);
        let rows = hidden.clone().narrow(0, start, end - start);
        let (loss, gradient) = one_chunk(rows, head, &part, gradient_scale);
        loss_sum += loss;
        gradients.push(gradient);
    }
    LossAndGradient {
        loss_sum,
        d_hidden: Tensor::cat(gradients, 0),
    }
}

/// The loss of [`linear_cross_entropy`] without the gradient.
pub fn linear_cross_entropy_loss(
    hidden: Tensor<2>,
    head: &FrozenWeight,
    supervision: &Supervision,
    chunk_rows: usize,
) -> f64 {
    crate::operation!("linear_cross_entropy");
    let m = hidden.dims()[0];
    let head = match head.storage() {
        Storage::Packed(packed) => {
            let hidden = plain(&hidden, packed.dtype()).expect(SAME_DTYPE);
            return with_matrix!(packed, head => {
                let chunks = cpu::Chunks { hidden: hidden.numbers(), head, chunk_rows };
                chunks.loss(supervision)
            });
        }
        Storage::Quantised(_) => {
            let head = head.dequantised();
            return linear_cross_entropy_loss(hidden, &head, supervision, chunk_rows);
        }
        Storage::Dense(head) => head,
    };
    #[cfg(feature = "cube")]
    if is_served_by_gpu(&hidden) {
        return cuda::chunked_loss(&hidden, head, supervision, None, chunk_rows).0;
    }
    (0..m)
        .step_by(chunk_rows)
        .map(|start| {
            let part = supervision.part(start..(start + chunk_rows).min(m));
            let rows = hidden.clone().narrow(0, start, part.rows.len());
            chunk_loss(rows, head, &part).0
        })
        .sum()
}

/// Loss, log-probabilities `[m, v]` and targets `[m, 1]` of a chunk.
fn chunk_loss(
    hidden: Tensor<2>,
    head: &Tensor<2>,
    part: &Supervision,
) -> (f64, Tensor<2>, Tensor<2, Int>) {
    let device = hidden.device();
    let m = part.rows.len();
    let log_probabilities = activation::log_softmax(logits_of(hidden, head), 1);
    let targets: Tensor<2, Int> =
        int_tensor(part.targets.iter().map(|&id| id as i32).collect(), &device).reshape([m, 1]);
    let picked = log_probabilities.clone().gather(1, targets.clone());
    let loss = picked
        .into_data()
        .iter::<f32>()
        .zip(&part.weights)
        .map(|(log_p, weight)| -f64::from(log_p) * f64::from(*weight))
        .sum();
    (loss, log_probabilities, targets)
}

fn one_chunk(
    hidden: Tensor<2>,
    head: &Tensor<2>,
    part: &Supervision,
    gradient_scale: f64,
) -> (f64, Tensor<2>) {
    let device = hidden.device();
    let (loss, log_probabilities, targets) = chunk_loss(hidden, head, part);
    let scales = scales_of(part, gradient_scale, &device);
    let d_logits = log_probabilities.exp().mul(scales.clone());
    let d_logits = d_logits.scatter(
        1,
        targets,
        scales.neg(),
        burn::tensor::IndexingUpdateOp::Add,
    );
    (loss, d_logits.cast(head.dtype()).matmul(head.clone()))
}

/// Gradient scale of each row, `[m, 1]`.
fn scales_of(part: &Supervision, gradient_scale: f64, device: &Device) -> Tensor<2> {
    let scales = part.weights.iter();
    let scales: Vec<f32> = scales
        .map(|w| (f64::from(*w) * gradient_scale) as f32)
        .collect();
    let shape = [scales.len(), 1];
    Tensor::from_data(TensorData::new(scales, shape), device)
}

/// Logits in f32, for any dtype of the head.
fn logits_of(hidden: Tensor<2>, head: &Tensor<2>) -> Tensor<2> {
    #[cfg(feature = "cube")]
    if is_served_by_gpu(&hidden) && is_served_by_gpu(head) && hidden.dims()[0] > 0 {
        return cuda::logits(hidden, head).cast(DType::F32);
    }
    hidden.matmul(head.clone().transpose()).cast(DType::F32)
}

/// Logits of normalised hidden states, for sampling.
///
/// # Shapes
///
/// - `hidden`: `[m, d]`, without autodiff, in the head's compute dtype
/// - `head`: `[v, d]`, frozen
/// - returns: `[m, v]`, f32
pub fn logits(hidden: Tensor<2>, head: &FrozenWeight) -> Tensor<2> {
    crate::operation!("logits");
    let shape = [hidden.dims()[0], head.dims()[0]];
    let device = hidden.device();
    match head.storage() {
        Storage::Packed(packed) => {
            let hidden = plain(&hidden, packed.dtype()).expect(SAME_DTYPE);
            let logits = with_matrix!(packed, head => cpu::logits(hidden.numbers(), head));
            Tensor::from_data(
                TensorData::from_bytes(logits.into_bytes(), shape, DType::F32),
                &device,
            )
        }
        Storage::Dense(head) => logits_of(hidden, head),
        Storage::Quantised(_) => logits(hidden, &head.dequantised()),
    }
}

fn int_tensor(values: Vec<i32>, device: &Device) -> Tensor<1, Int> {
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]), device)
}
