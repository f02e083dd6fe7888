//! The loss of a student with a teacher that shares its LM head: cross entropy, and the divergence
//! between the two distributions.
//!
//! In self-distillation the teacher is the same model without its adapter, so only its last hidden
//! states are passed. The logits of both exist for one chunk of rows at a time.

use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor, TensorData, activation};
use rayon::prelude::*;

use super::{SAME_DTYPE, Supervision, int_tensor, logits};
use crate::cpu::buffer::plain;
use crate::cpu::exp::exp;
use crate::cpu::isa::for_each_isa;
use crate::cpu::packed::convert::narrowed;
use crate::cpu::packed::operand::Operand;
use crate::cpu::packed::product::rows_times_panels;
use crate::cpu::pool::Buffer;
use crate::frozen_weight::{FrozenWeight, PackedMatrix, Storage, with_matrix};

/// Weight of the teacher.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Distillation {
    /// Fraction of the divergence in the loss, from 0 to 1; the rest is cross entropy.
    pub alpha: f64,
    /// Temperature that divides both logits; above 0.
    pub temperature: f64,
}

/// Losses and gradient.
#[derive(Debug, Clone)]
pub struct DistilledLoss {
    /// Weighted sum of the negative log-likelihoods, in nats.
    pub cross_entropy_sum: f64,
    /// Weighted sum of `temperature² KL(teacher ‖ student)`, in nats.
    pub divergence_sum: f64,
    /// Gradient of `loss_sum * gradient_scale` with respect to the student's hidden states, `[m,
    /// d]`.
    pub d_hidden: Tensor<2>,
}

impl DistilledLoss {
    /// `(1 - alpha) cross_entropy_sum + alpha divergence_sum`.
    pub fn loss_sum(&self, distillation: Distillation) -> f64 {
        let alpha = distillation.alpha;
        (1.0 - alpha) * self.cross_entropy_sum + alpha * self.divergence_sum
    }
}

/// [`super::linear_cross_entropy`] of a student that also learns from a teacher.
///
/// # Shapes
///
/// - `student`, `teacher`: `[m, d]`, without autodiff, in the head's compute dtype
/// - `head`: `[v, d]`, frozen
/// - returns: gradient `[m, d]`, in the dtype of `student`
///
/// # Source
///
/// Hinton et al. 2015, section 2: the divergence is multiplied by the squared temperature, so that
/// its gradient keeps its magnitude.
pub fn distilled_cross_entropy(
    [student, teacher]: [Tensor<2>; 2],
    head: &FrozenWeight,
    supervision: &Supervision,
    distillation: Distillation,
    gradient_scale: f64,
    chunk_rows: usize,
) -> DistilledLoss {
    crate::operation!("linear_cross_entropy");
    let head = &head.dequantised();
    let m = student.dims()[0];
    let (mut cross_entropy_sum, mut divergence_sum) = (0.0, 0.0);
    let mut gradients = Vec::with_capacity(m.div_ceil(chunk_rows));
    for start in (0..m).step_by(chunk_rows) {
        let part = supervision.part(start..(start + chunk_rows).min(m));
        let rows = |x: &Tensor<2>| x.clone().narrow(0, start, part.rows.len());
        let chunk = Chunk {
            student: rows(&student),
            teacher: rows(&teacher),
            part: &part,
            distillation,
            gradient_scale,
        };
        let (sums, gradient) = match head.storage() {
            Storage::Packed(packed) => {
                with_matrix!(packed, matrix => chunk.compute_fused(head, matrix))
            }
            Storage::Dense(dense) => chunk.compute_composed(dense),
            Storage::Quantised(_) => unreachable!("the head was dequantised"),
        };
        cross_entropy_sum += sums[0];
        divergence_sum += sums[1];
        gradients.push(gradient);
    }
    DistilledLoss {
        cross_entropy_sum,
        divergence_sum,
        d_hidden: Tensor::cat(gradients, 0),
    }
}

/// A chunk of rows.
struct Chunk<'a> {
    student: Tensor<2>,
    teacher: Tensor<2>,
    part: &'a Supervision,
    distillation: Distillation,
    gradient_scale: f64,
}

impl Chunk<'_> {
    /// Sums of cross entropy and divergence, and the gradient of the student's rows.
    fn compute_fused<T: Operand>(
        &self,
        head: &FrozenWeight,
        matrix: &PackedMatrix<T>,
    ) -> ([f64; 2], Tensor<2>) {
        let device = self.student.device();
        let [m, d] = self.student.dims();
        let v = head.dims()[0];
        let logits_of = |hidden: &Tensor<2>| {
            let logits = logits(hidden.clone(), head);
            plain(&logits, DType::F32).expect(SAME_DTYPE)
        };
        let (student, teacher) = (logits_of(&self.student), logits_of(&self.teacher));
        let mut d_logits = Buffer::copy_of(student.numbers::<f32>());
        let rows = d_logits
            .par_chunks_mut(v)
            .zip(teacher.numbers::<f32>().par_chunks(v))
            .enumerate();
        let sums: Vec<[f64; 2]> = rows
            .map(|(i, (student, teacher))| {
                let weight = self.part.weights[i];
                let scale = (f64::from(weight) * self.gradient_scale) as f32;
                let target = self.part.targets[i] as usize;
                row_to_gradient(student, teacher, target, self.distillation, scale)
                    .map(|sum| f64::from(sum) * f64::from(weight))
            })
            .collect();
        let sums = sums.iter().fold([0.0; 2], |total, row| {
            [total[0] + row[0], total[1] + row[1]]
        });
        let d_logits = narrowed::<T>(&d_logits);
        let d_hidden: Buffer<T> =
            rows_times_panels(&d_logits[..], matrix.kept_backward(), None, None);
        let bytes = TensorData::from_bytes(d_hidden.into_bytes(), [m, d], T::DTYPE);
        (sums, Tensor::from_data(bytes, (&device, T::DTYPE)))
    }

    /// The same result in tensor operations.
    fn compute_composed(&self, head: &Tensor<2>) -> ([f64; 2], Tensor<2>) {
        let Distillation { alpha, temperature } = self.distillation;
        let device = self.student.device();
        let m = self.part.rows.len();
        let logits_of = |hidden: &Tensor<2>| super::logits_of(hidden.clone(), head);
        let (student, teacher) = (logits_of(&self.student), logits_of(&self.teacher));
        let log_p = activation::log_softmax(student.clone(), 1);
        let soft = |logits: Tensor<2>| activation::log_softmax(logits.div_scalar(temperature), 1);
        let (soft_student, soft_teacher) = (soft(student), soft(teacher));
        let targets: Vec<i32> = self.part.targets.iter().map(|&id| id as i32).collect();
        let targets: Tensor<2, Int> = int_tensor(targets, &device).reshape([m, 1]);
        let weighted = |rows: Tensor<2>| -> f64 {
            let rows = rows.into_data();
            let weights = self.part.weights.iter();
            rows.iter::<f32>()
                .zip(weights)
                .map(|(row, weight)| f64::from(row) * f64::from(*weight))
                .sum()
        };
        let cross_entropy = weighted(log_p.clone().gather(1, targets.clone()).neg());
        let teacher_p = soft_teacher.clone().exp();
        let differences = soft_teacher.sub(soft_student.clone());
        let divergence = weighted(teacher_p.clone().mul(differences).sum_dim(1));
        let scales: Vec<f32> = self
            .part
            .weights
            .iter()
            .map(|weight| (f64::from(*weight) * self.gradient_scale) as f32)
            .collect();
        let scales = Tensor::<2>::from_data(TensorData::new(scales, [m, 1]), &device);
        let hard = log_p
            .exp()
            .scatter(1, targets, scales.ones_like().neg(), IndexingUpdateOp::Add)
            .mul_scalar(1.0 - alpha);
        let towards = soft_student
            .exp()
            .sub(teacher_p)
            .mul_scalar(alpha * temperature);
        let d_logits = hard.add(towards).mul(scales);
        let sums = [cross_entropy, temperature * temperature * divergence];
        (sums, d_logits.cast(head.dtype()).matmul(head.clone()))
    }
}

for_each_isa! {
    /// Cross entropy and divergence of a row; replaces its logits by their scaled gradient.
    fn row_to_gradient(
        student: &mut [f32],
        teacher: &[f32],
        target: usize,
        distillation: Distillation, scale: f32,) -> [f32; 2] {
        let Distillation { alpha, temperature } = distillation;
        let inverse_temperature = (1.0 / temperature) as f32;
        let hard_log_sum = log_sum_exp(student, 1.0);
        let soft_log_sum = log_sum_exp(student, inverse_temperature);
        let teacher_log_sum = log_sum_exp(teacher, inverse_temperature);
        let cross_entropy = hard_log_sum - student[target];
        let hard_weight = (1.0 - alpha) as f32 * scale;
        let soft_weight = (alpha * temperature) as f32 * scale;
        let mut lanes = [0.0f32; 16];
        for (part, teacher) in student.chunks_mut(16).zip(teacher.chunks(16)) {
            for ((lane, s), &t) in lanes.iter_mut().zip(part).zip(teacher) {
                let (log_s, log_t) = (*s * inverse_temperature - soft_log_sum, t * inverse_temperature - teacher_log_sum);
                let (p_s, p_t) = (exp(log_s), exp(log_t));
                *lane += p_t * (log_t - log_s);
                *s = hard_weight * exp(*s - hard_log_sum) + soft_weight * (p_s - p_t);
            }
        }
        student[target] -= hard_weight;
        let divergence: f32 = lanes.iter().sum();
        [cross_entropy, (temperature * temperature) as f32 * divergence]
    }
}

/// `ln Σ e^(factor x)`; NaN if an element is NaN.
#[inline(always)]
fn log_sum_exp(x: &[f32], factor: f32) -> f32 {
    let mut most = [f32::NEG_INFINITY; 16];
    for part in x.chunks(16) {
        for (most, &x) in most.iter_mut().zip(part) {
            // A comparison would drop NaN, because it is false.
            *most = if x <= *most { *most } else { x };
        }
    }
    let most = most
        .iter()
        .fold(f32::NEG_INFINITY, |a, &b| if b <= a { a } else { b })
        * factor;
    let mut lanes = [0.0f32; 16];
    for part in x.chunks(16) {
        for (lane, &x) in lanes.iter_mut().zip(part) {
            *lane += exp(x * factor - most);
        }
    }
    most + lanes.iter().sum::<f32>().ln()
}
