//! The distillation loss, against sums in f64 and finite differences.

use burn::tensor::{Tensor, TensorData};
use tooltune_kernels::linear_cross_entropy::distilled::distilled_cross_entropy;
use tooltune_kernels::linear_cross_entropy::linear_cross_entropy;
use tooltune_kernels::{ComputeDtype, Distillation, FrozenWeight, Supervision};

use crate::bounds::Quantity;
use crate::support::{Numbers, assert_near, assert_near_in, on_threads, test_device, values};

struct Case {
    student: Vec<f32>,
    teacher: Vec<f32>,
    head: Vec<f32>,
    supervision: Supervision,
    shape: [usize; 3],
}

impl Case {
    fn new(numbers: &mut Numbers, shape: [usize; 3]) -> Self {
        let [m, d, v] = shape;
        let rounded = |values: Vec<f32>| -> Vec<f32> {
            // Exact in bf16, so that both dtypes have the same values.
            values.iter().map(|x| (x * 64.0).round() / 64.0).collect()
        };
        let targets: Vec<u32> = (0..m).map(|_| numbers.below(v) as u32).collect();
        let weights: Vec<f32> = (0..m).map(|i| 0.5 + (i % 3) as f32).collect();
        Self {
            student: rounded(numbers.floats(m * d)),
            teacher: rounded(numbers.floats(m * d)),
            head: rounded(numbers.floats(v * d)),
            supervision: Supervision::new(&targets, &weights),
            shape,
        }
    }

    fn run(&self, how: Distillation, dtype: ComputeDtype, chunk: usize) -> (f64, f64, Vec<f32>) {
        let [m, d, v] = self.shape;
        let device = test_device();
        let on_device = |values: &Vec<f32>| {
            let data = TensorData::new(values.clone(), [m, d]);
            Tensor::<2>::from_data(data, &device).cast(dtype.dtype())
        };
        let head = FrozenWeight::new(self.head.clone(), [v, d], dtype, &device);
        let both = [on_device(&self.student), on_device(&self.teacher)];
        let losses = distilled_cross_entropy(both, &head, &self.supervision, how, 0.25, chunk);
        assert_eq!(losses.d_hidden.dtype(), dtype.dtype());
        (
            losses.cross_entropy_sum,
            losses.divergence_sum,
            values(&losses.d_hidden),
        )
    }

    /// Both sums in f64, for different hidden states of the student.
    fn expected(&self, student: &[f64], how: Distillation) -> (f64, f64) {
        let [m, d, v] = self.shape;
        let logits = |hidden: &dyn Fn(usize) -> f64, row: usize| -> Vec<f64> {
            (0..v)
                .map(|token| {
                    (0..d)
                        .map(|i| hidden(row * d + i) * f64::from(self.head[token * d + i]))
                        .sum()
                })
                .collect()
        };
        let log_softmax = |x: &[f64], t: f64| -> Vec<f64> {
            let sum: f64 = x.iter().map(|x| (x / t).exp()).sum();
            x.iter().map(|x| x / t - sum.ln()).collect()
        };
        let (mut cross_entropy, mut divergence) = (0.0, 0.0);
        for row in 0..m {
            let weight = f64::from(self.supervision.weights[row]);
            let s = logits(&|i| student[i], row);
            let t = logits(&|i| f64::from(self.teacher[i]), row);
            cross_entropy -= weight * log_softmax(&s, 1.0)[self.supervision.targets[row] as usize];
            let (s, t) = (
                log_softmax(&s, how.temperature),
                log_softmax(&t, how.temperature),
            );
            let kl: f64 = s.iter().zip(&t).map(|(s, t)| t.exp() * (t - s)).sum();
            divergence += weight * how.temperature.powi(2) * kl;
        }
        (cross_entropy, divergence)
    }
}

const HOW: [Distillation; 3] = [
    Distillation {
        alpha: 0.5,
        temperature: 1.0,
    },
    Distillation {
        alpha: 0.3,
        temperature: 2.5,
    },
    Distillation {
        alpha: 1.0,
        temperature: 0.7,
    },
];

#[test]
fn sums_and_gradient_match_f64() {
    let mut numbers = Numbers::new(91);
    for shape in [[1, 3, 5], [7, 8, 33], [19, 32, 100]] {
        let case = Case::new(&mut numbers, shape);
        let student: Vec<f64> = case.student.iter().map(|x| f64::from(*x)).collect();
        for how in HOW {
            let (cross_entropy, divergence) = case.expected(&student, how);
            let loss = |student: &[f64]| {
                let (cross_entropy, divergence) = case.expected(student, how);
                0.25 * ((1.0 - how.alpha) * cross_entropy + how.alpha * divergence)
            };
            let gradient: Vec<f32> = (0..student.len())
                .map(|i| {
                    let loss_at = |step: f64| {
                        let mut moved = student.clone();
                        moved[i] += step;
                        loss(&moved)
                    };
                    ((loss_at(1e-5) - loss_at(-1e-5)) / 2e-5) as f32
                })
                .collect();
            for dtype in [ComputeDtype::F32, ComputeDtype::Bf16] {
                let name = format!("{shape:?} {how:?} {dtype:?}");
                let (ours, theirs, d_student) = case.run(how, dtype, 5);
                let bound = Quantity::LossSum.bound_in(dtype.dtype());
                let bound = bound * (1.0 + cross_entropy.abs());
                assert!(
                    (ours - cross_entropy).abs() < bound,
                    "{name}: {ours} {cross_entropy}"
                );
                assert!(
                    (theirs - divergence).abs() < bound,
                    "{name}: {theirs} {divergence}"
                );
                assert_near_in(dtype.dtype(), &name, &d_student, &gradient);
            }
        }
    }
}

/// Compares sums over the same rows.
fn assert_same_loss(dtype: ComputeDtype, ours: f64, expected: f64) {
    let bound = Quantity::LossInOtherPieces.bound_in(dtype.dtype());
    let off = (ours - expected).abs() / (1.0 + expected.abs());
    assert!(off < bound, "{ours} {expected}");
}

#[test]
fn without_teacher_weight_it_is_cross_entropy() {
    let mut numbers = Numbers::new(92);
    let case = Case::new(&mut numbers, [19, 32, 100]);
    let none = Distillation {
        alpha: 0.0,
        temperature: 2.0,
    };
    let (cross_entropy, _, d_student) = case.run(none, ComputeDtype::F32, 8);
    let device = test_device();
    let head = FrozenWeight::new(case.head.clone(), [100, 32], ComputeDtype::F32, &device);
    let student = Tensor::from_data(TensorData::new(case.student.clone(), [19, 32]), &device);
    let plain = linear_cross_entropy(student, &head, &case.supervision, 0.25, 8);
    assert_same_loss(ComputeDtype::F32, plain.loss_sum, cross_entropy);
    assert_near("gradient", &d_student, &values(&plain.d_hidden));
}

#[test]
fn a_student_equal_to_its_teacher_gets_no_teacher_gradient() {
    let mut numbers = Numbers::new(93);
    let mut case = Case::new(&mut numbers, [6, 16, 70]);
    case.teacher = case.student.clone();
    let (_, divergence, gradient) = case.run(HOW[2], ComputeDtype::F32, 4);
    assert_eq!(divergence, 0.0);
    assert!(gradient.iter().all(|g| *g == 0.0), "{gradient:?}");
}

#[test]
fn results_do_not_depend_on_chunks_or_threads_and_keep_nan() {
    let mut numbers = Numbers::new(94);
    let mut case = Case::new(&mut numbers, [23, 16, 70]);
    let run = |chunk| case.run(HOW[1], ComputeDtype::Bf16, chunk);
    let (one, three) = (on_threads(1, || run(4)), on_threads(3, || run(4)));
    assert_eq!(one, three);
    let one_chunk = run(100);
    assert_same_loss(ComputeDtype::Bf16, one_chunk.0, one.0);
    assert_same_loss(ComputeDtype::Bf16, one_chunk.1, one.1);
    case.teacher[3] = f32::NAN;
    let (_, divergence, gradient) = case.run(HOW[0], ComputeDtype::F32, 4);
    assert!(divergence.is_nan());
    assert!(gradient[..16].iter().all(|g| g.is_nan()));
    assert!(gradient[16..].iter().all(|g| g.is_finite()));
}
