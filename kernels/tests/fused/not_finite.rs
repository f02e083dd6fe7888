//! Non-finite values: an operation and its reference have finite values and gradients in exactly
//! the same elements.

use burn::tensor::{DType, Tensor, TensorData, activation};
use tooltune_kernels::attention::{self, Columns, attention, decode};
use tooltune_kernels::dense::InputTransform;
use tooltune_kernels::layer_norm::{self, layer_norm};
use tooltune_kernels::linear_cross_entropy::distilled::distilled_cross_entropy;
use tooltune_kernels::linear_cross_entropy::{self, linear_cross_entropy};
use tooltune_kernels::lora_linear::{self, lora_linear};
use tooltune_kernels::rms_norm::{self, rms_norm};
use tooltune_kernels::rope::{self, rope};
use tooltune_kernels::swiglu::{self, swiglu};
use tooltune_kernels::{
    Causality, ComputeDtype, Distillation, Documents, FrozenWeight, RopeTable, Supervision,
};

use crate::lora_linear::{KINDS, Kind, Shape};
use crate::support::{BOTH_TYPES, Numbers, gradient, gradients, leaf, test_device, values};
use crate::trained;

const BAD: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
const BOTH: [ComputeDtype; 2] = [ComputeDtype::F32, ComputeDtype::Bf16];

/// Values and gradients by name.
type Results = Vec<(&'static str, Vec<f32>)>;

/// The tensor with `bad` at one index.
fn poisoned<const D: usize>(x: &Tensor<D>, index: usize, bad: f32) -> Tensor<D> {
    let mut floats = values(x);
    floats[index] = bad;
    let data = TensorData::new(floats, x.dims());
    Tensor::<D>::from_data(data, &x.device()).cast(x.dtype())
}

/// The last index of `n`, and some others.
fn places(numbers: &mut Numbers, n: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..3).map(|_| numbers.below(n)).collect();
    places.push(n - 1);
    places
}

/// Allowed differences from the reference.
#[derive(Debug, Clone, Copy, PartialEq)]
enum May {
    Not,
    /// More results are not finite, because 0 times a non-finite value is added.
    Spread,
    /// Fewer results are not finite, because products with 0 are skipped.
    LeaveOut,
    /// Either, but some result is not finite.
    Move,
}

/// Results whose finite elements differ from the reference.
#[derive(Debug, Default)]
struct Mismatches {
    different: Vec<String>,
    /// Number of results with non-finite elements.
    n_bad: usize,
}

impl Mismatches {
    fn compare(&mut self, name: &str, ours: &Results, expected: &Results) {
        self.compare_but(name, ours, expected, &|_| May::Not);
    }

    fn compare_but(
        &mut self,
        name: &str,
        ours: &Results,
        expected: &Results,
        may: &dyn Fn(&str) -> May,
    ) {
        assert_eq!(ours.len(), expected.len(), "{name}");
        for ((result, ours), (_, expected)) in ours.iter().zip(expected) {
            assert_eq!(ours.len(), expected.len(), "{name}, {result}");
            let pairs = || ours.iter().zip(expected);
            let removed = pairs().filter(|(a, b)| a.is_finite() && !b.is_finite());
            let added = pairs().filter(|(a, b)| !a.is_finite() && b.is_finite());
            let (removed, added) = (removed.count(), added.count());
            let bad = expected.iter().filter(|value| !value.is_finite()).count();
            self.n_bad += usize::from(bad > 0);
            let may = may(result);
            let is_right = match may {
                May::Not => removed + added == 0,
                May::Spread => removed == 0,
                May::LeaveOut => added == 0,
                May::Move => removed < bad || added > 0 || bad == 0,
            };
            if !is_right {
                self.different.push(format!(
                    "{name}: of the {} elements of {result}, {bad} should not be finite: {removed} of \
                     them are finite, and {added} others are not",
                    ours.len()
                ));
            }
        }
    }

    fn assert_none(self) {
        assert!(self.n_bad >= 40, "{} results were not finite", self.n_bad);
        let (n, different) = (self.different.len(), self.different.join("\n"));
        assert!(n == 0, "{n} results differ:\n{different}");
    }
}

#[test]
fn lora_linear_is_not_finite_exactly_where_the_reference_is() {
    let (mut numbers, mut mismatches) = (Numbers::new(101), Mismatches::default());
    for shape in [
        Shape::new(13, 33, &[31, 40], &[3, 8]),
        Shape::new(1, 64, &[96], &[8]),
        Shape::new(50, 64, &[40, 31, 7], &[4, 0, 1]),
    ] {
        for (kind, dtype) in KINDS.iter().flat_map(|k| BOTH.map(|dtype| (*k, dtype))) {
            let good = crate::lora_linear::case(&mut numbers, shape, kind, dtype);
            for input in ["x", "weight", "bias", "norm", "factors", "residual", "dy"] {
                for bad in BAD {
                    for turn in 0..4 {
                        let Some(case) = poisoned_layer(&mut numbers, &good, (input, turn), bad)
                        else {
                            continue;
                        };
                        let name = format!("{shape:?}, {kind:?}, {dtype:?}, {bad} in {input}");
                        let run = |operation| crate::lora_linear::run(operation, &case);
                        let (ours, expected) =
                            (run(lora_linear), run(lora_linear::reference::lora_linear));
                        mismatches.compare_but(&name, &ours, &expected, &|result| {
                            may_layer_differ(kind, input, result)
                        });
                    }
                }
            }
        }
    }
    mismatches.assert_none();
}

/// Cases in which the fused layers compute the result in a different way.
fn may_layer_differ(kind: Kind, input: &str, result: &str) -> May {
    match (input, result) {
        // The adapters of a stack are one product, in which each multiplies the low-rank values of
        // the others by zero. In bf16, a layer of odd width also multiplies the next layer's first
        // gradient by zero.
        ("factors", "y") | ("dy", "factors") => May::Spread,
        // Dropped elements are not read, whereas the reference multiplies them by 0. The value
        // shows them anyway: layers read all of their input, and low-rank values read all of A.
        ("x", "factors") | ("factors", "dx") if kind == Kind::Dropped => May::LeaveOut,
        _ => May::Not,
    }
}

/// The case with `bad` in an input, or `None` if it has no such input.
fn poisoned_layer(
    numbers: &mut Numbers,
    good: &crate::lora_linear::Case,
    (input, turn): (&str, usize),
    bad: f32,
) -> Option<crate::lora_linear::Case> {
    let mut case = good.clone();
    let mut index_below = |n: usize| match turn {
        0 => n - 1,
        _ => numbers.below(n),
    };
    let linear = &mut case.linear;
    match input {
        "x" => case.x = poisoned(&case.x, index_below(case.x.shape().num_elements()), bad),
        "dy" => case.dy = poisoned(&case.dy, index_below(case.dy.shape().num_elements()), bad),
        "weight" => {
            let weight = linear.weight.to_tensor();
            let weight = poisoned(&weight, index_below(weight.shape().num_elements()), bad);
            let dtype = linear.weight.compute_dtype();
            linear.weight =
                FrozenWeight::new(values(&weight), weight.dims(), dtype, &test_device());
        }
        "bias" => {
            let bias = linear.bias.as_ref()?;
            linear.bias = Some(poisoned(bias, index_below(bias.dims()[0]), bad));
        }
        "factors" => {
            let adapter = linear.adapter.as_ref()?;
            let index_below = index_below(adapter.factors.dims()[0]);
            let factors = poisoned(&adapter.factors, index_below, bad);
            let layout = std::sync::Arc::new(adapter.layout().clone());
            linear.adapter = Some(lora_linear::StackedAdapter::new(factors, layout));
        }
        "residual" => {
            let residual = case.residual.as_ref()?;
            let n = residual.shape().num_elements();
            case.residual = Some(poisoned(residual, index_below(n), bad));
        }
        _ => {
            let lora_linear::InputTransform::Normed { weight, .. } = &mut case.transform else {
                return None;
            };
            **weight = poisoned(weight, index_below(weight.dims()[0]), bad);
        }
    }
    Some(case)
}

/// Value and gradient of an operation on one tensor.
fn value_and_gradient<const D: usize, const E: usize>(
    (x, dy): (&Tensor<D>, &Tensor<E>),
    f: &dyn Fn(Tensor<D>) -> Tensor<E>,
) -> Results {
    let x = leaf(x);
    let y = f(x.clone());
    let value = values(&y.clone().inner());
    vec![("y", value), ("dx", gradient(&x, &gradients(y, dy)))]
}

/// Compares one operation on one tensor with each of `x` and `dy` poisoned in turn.
fn compare<const D: usize, const E: usize>(
    (numbers, mismatches): (&mut Numbers, &mut Mismatches),
    name: &str,
    (x, dy): (&Tensor<D>, &Tensor<E>),
    ours: &dyn Fn(Tensor<D>) -> Tensor<E>,
    reference: &dyn Fn(Tensor<D>) -> Tensor<E>,
    may: &dyn Fn(&str) -> May,
) {
    for bad in BAD {
        for index in places(numbers, x.shape().num_elements()) {
            let x = poisoned(x, index, bad);
            let name = format!("{name}, {bad} in x at {index}");
            mismatches.compare_but(
                &name,
                &value_and_gradient((&x, dy), ours),
                &value_and_gradient((&x, dy), reference),
                may,
            );
        }
        for index in places(numbers, dy.shape().num_elements()) {
            let dy = poisoned(dy, index, bad);
            let name = format!("{name}, {bad} in dy at {index}");
            mismatches.compare_but(
                &name,
                &value_and_gradient((x, &dy), ours),
                &value_and_gradient((x, &dy), reference),
                may,
            );
        }
    }
}

#[test]
fn swiglu_is_not_finite_exactly_where_the_reference_is() {
    let (mut numbers, mut mismatches) = (Numbers::new(102), Mismatches::default());
    for dtype in BOTH_TYPES {
        for [n, f] in [[1, 1], [3, 33], [2, 64]] {
            let gate_up = numbers.tensor([n, 2 * f]).mul_scalar(12.0).cast(dtype);
            let dy = numbers.tensor([n, f]).cast(dtype);
            let name = format!("{n} {f} {dtype:?}");
            let to = (&mut numbers, &mut mismatches);
            let reference = swiglu::reference::swiglu;
            compare(to, &name, (&gate_up, &dy), &swiglu, &reference, &|_| {
                May::Not
            });
        }
    }
    mismatches.assert_none();
}

#[test]
fn rms_norm_is_not_finite_exactly_where_the_reference_is() {
    let (mut numbers, mut mismatches) = (Numbers::new(103), Mismatches::default());
    for output in BOTH_TYPES {
        for [n, d] in [[1, 1], [3, 33], [5, 64]] {
            let (x, weight) = (numbers.tensor([n, d]), numbers.tensor([d]));
            let dy = numbers.tensor([n, d]).cast(output);
            let name = format!("{n} {d} {output:?}");
            let mut weights = vec![(name.clone(), weight.clone())];
            for bad in BAD {
                let weight = poisoned(&weight, numbers.below(d), bad);
                weights.push((format!("{name}, {bad} in the weight"), weight));
            }
            for (name, weight) in weights {
                compare(
                    (&mut numbers, &mut mismatches),
                    &name,
                    (&x, &dy),
                    &|x| rms_norm(x, &weight, 1e-5, output),
                    &|x| rms_norm::reference::rms_norm(x, &weight, 1e-5, output),
                    &|_| May::Not,
                );
            }
        }
    }
    mismatches.assert_none();
}

#[test]
fn rope_is_not_finite_exactly_where_the_reference_is() {
    let (mut numbers, mut mismatches) = (Numbers::new(104), Mismatches::default());
    // No angle whose sine or cosine is 0.
    let table = RopeTable::new(&[3, 4], &[1.0, 0.1, 0.01, 0.001], 1.0, &test_device());
    for dtype in BOTH_TYPES {
        let [x, dy] = [0, 1].map(|_| numbers.tensor([2, 3, 8]).cast(dtype));
        compare(
            (&mut numbers, &mut mismatches),
            &format!("{dtype:?}"),
            (&x, &dy),
            &|x| rope(x, &table, 2),
            &|x| rope::reference::rope(x, &table, 2),
            &|_| May::Not,
        );
    }
    mismatches.assert_none();
}

#[test]
fn attention_is_not_finite_exactly_where_the_reference_is() {
    let (mut numbers, mut mismatches) = (Numbers::new(105), Mismatches::default());
    let documents = Documents::new(&[0, 5, 70, 71], 73);
    for (dtype, causality) in BOTH_TYPES
        .iter()
        .flat_map(|dtype| crate::backend::attention::BOTH.map(|causality| (*dtype, causality)))
    {
        for [h, g, c] in [[2, 1, 8], [6, 2, 16]] {
            let qkv = numbers.tensor([73, h + 2 * g, c]).cast(dtype);
            let dy = numbers.tensor([73, h, c]).cast(dtype);
            compare(
                (&mut numbers, &mut mismatches),
                &format!("{h} {g} {c} {dtype:?} {causality:?}"),
                (&qkv, &dy),
                &|qkv| attention(qkv, h, &documents, causality),
                &|qkv| attention::reference::attention(qkv, h, &documents, causality),
                // The reference multiplies later tokens of the whole document by a probability of
                // 0; tiles do so only for tokens within the tile.
                &|result| match (causality, result) {
                    (Causality::Bidirectional, _) => May::Not,
                    (Causality::Causal | Causality::Sliding(_), "y") => May::LeaveOut,
                    (Causality::Causal | Causality::Sliding(_), _) => May::Move,
                },
            );
        }
    }
    mismatches.assert_none();
}

#[test]
fn attention_to_a_cache_is_not_finite_exactly_where_the_reference_is() {
    let (mut numbers, mut mismatches) = (Numbers::new(106), Mismatches::default());
    for ([h, g, c], starts, end) in [
        ([2, 1, 8], &[0, 0, 5][..], 20),
        ([6, 2, 64], &[0, 200], 290),
        ([9, 3, 16], &[0], 1),
    ] {
        let columns = Columns { starts, end };
        let rows = starts.len();
        for dtype in BOTH_TYPES {
            for cache_dtype in BOTH_TYPES {
                let qkv = numbers.tensor([rows, h + 2 * g, c]).cast(dtype);
                let [keys, cached] =
                    [0, 1].map(|_| numbers.tensor([rows, g, end + 3, c]).cast(cache_dtype));
                for bad in BAD {
                    for which in ["qkv", "keys", "values"] {
                        let n = match which {
                            "qkv" => qkv.shape().num_elements(),
                            _ => keys.shape().num_elements(),
                        };
                        for index in places(&mut numbers, n) {
                            let input = |name, x: &Tensor<4>| {
                                if name == which {
                                    poisoned(x, index, bad)
                                } else {
                                    x.clone()
                                }
                            };
                            let (keys, cached) = (input("keys", &keys), input("values", &cached));
                            let qkv = match which {
                                "qkv" => poisoned(&qkv, index, bad),
                                _ => qkv.clone(),
                            };
                            let ours = decode(qkv.clone(), h, &keys, &cached, columns);
                            let expected =
                                attention::reference::decode(qkv, h, &keys, &cached, columns);
                            let name = format!(
                                "{h} {g} {c} {dtype:?} {cache_dtype:?}, {bad} in {which} at {index}"
                            );
                            let [ours, expected] =
                                [ours, expected].map(|y| vec![("y", values(&y))]);
                            mismatches.compare(&name, &ours, &expected);
                        }
                    }
                }
            }
        }
    }
    mismatches.assert_none();
}

#[test]
fn trained_linear_is_not_finite_exactly_where_the_reference_is() {
    let (mut numbers, mut mismatches) = (Numbers::new(107), Mismatches::default());
    for dtype in BOTH {
        for transform in [InputTransform::Plain, InputTransform::Gelu] {
            for shape in [[1, 1, 1], [7, 33, 5], [50, 64, 96]] {
                let kind = (dtype, transform, shape[0] != 7);
                let good = trained::Case::new(&mut numbers, shape, kind);
                for bad in BAD {
                    for input in ["x", "weight", "bias", "residual", "dy"] {
                        for turn in 0..3 {
                            let mut case = good.clone();
                            let mut index_below = |n: usize| match turn {
                                0 => n - 1,
                                _ => numbers.below(n),
                            };
                            let mut matrix = |x: &Tensor<2>| {
                                poisoned(x, index_below(x.shape().num_elements()), bad)
                            };
                            match input {
                                "x" => case.x = matrix(&case.x),
                                "weight" => case.weight = matrix(&case.weight),
                                "dy" => case.dy = matrix(&case.dy),
                                "residual" => case.residual = case.residual.map(|r| matrix(&r)),
                                _ => {
                                    let n = index_below(case.bias.dims()[0]);
                                    case.bias = poisoned(&case.bias, n, bad);
                                }
                            }
                            let name = format!("{shape:?} {kind:?}, {bad} in {input}");
                            let run = |ours| {
                                let names = ["y", "dx", "weight", "bias", "residual"];
                                names.into_iter().zip(case.run(ours)).collect::<Results>()
                            };
                            mismatches.compare(&name, &run(true), &run(false));
                        }
                    }
                }
            }
        }
    }
    mismatches.assert_none();
}

#[test]
fn layer_norm_is_not_finite_exactly_where_the_reference_is() {
    let (mut numbers, mut mismatches) = (Numbers::new(108), Mismatches::default());
    type Norm = fn(Tensor<2>, &Tensor<1>, &Tensor<1>, f64) -> Tensor<2>;
    for ([n, d], far_from_zero) in [[1, 3], [5, 33], [70, 48]]
        .into_iter()
        .flat_map(|shape| [(shape, true), (shape, false)])
    {
        let [x, dy] = [0, 1].map(|_| numbers.tensor([n, d]));
        let weight = trained::weight_for(far_from_zero, numbers.tensor([d]));
        let bias = numbers.tensor([d]);
        for bad in BAD {
            for input in ["x", "weight", "bias", "dy"] {
                let wide = places(&mut numbers, n * d).into_iter();
                let narrow = places(&mut numbers, d).into_iter();
                for (wide, narrow) in wide.zip(narrow) {
                    let matrix = |name, x: &Tensor<2>| {
                        if name == input {
                            poisoned(x, wide, bad)
                        } else {
                            x.clone()
                        }
                    };
                    let row = |name, x: &Tensor<1>| {
                        if name == input {
                            poisoned(x, narrow, bad)
                        } else {
                            x.clone()
                        }
                    };
                    let run = |norm: Norm| -> Results {
                        let x = leaf(&matrix("x", &x));
                        let [w, b] = [("weight", &weight), ("bias", &bias)]
                            .map(|(name, x)| leaf(&row(name, x)));
                        let y = norm(x.clone(), &w, &b, 1e-5);
                        let value = values(&y.clone().inner());
                        let all = gradients(y, &matrix("dy", &dy));
                        vec![
                            ("y", value),
                            ("dx", gradient(&x, &all)),
                            ("weight", gradient(&w, &all)),
                            ("bias", gradient(&b, &all)),
                        ]
                    };
                    let name = format!("{n} {d} {far_from_zero}, {bad} in {input}");
                    let expected = run(layer_norm::reference::layer_norm);
                    mismatches.compare(&name, &run(layer_norm), &expected);
                }
            }
        }
    }
    mismatches.assert_none();
}

/// Loss and gradient by autodiff through all logits: cross entropy, with a teacher's divergence.
fn losses(
    [student, teacher]: [&Tensor<2>; 2],
    head: &Tensor<2>,
    supervision: &Supervision,
    how: Distillation,
) -> Results {
    let student = leaf(student);
    let cross_entropy =
        linear_cross_entropy::reference::linear_cross_entropy(student.clone(), head, supervision);
    let soft = |hidden: Tensor<2>| {
        let logits = hidden.matmul(head.clone().transpose());
        activation::log_softmax(logits.div_scalar(how.temperature), 1)
    };
    let teacher = Tensor::from_inner(soft(teacher.clone()));
    let weights = TensorData::new(supervision.weights.clone(), [supervision.weights.len(), 1]);
    let weights = Tensor::<2>::from_data(weights, &test_device());
    let divergence = teacher
        .clone()
        .exp()
        .mul(teacher.sub(soft(student.clone())))
        .mul(Tensor::from_inner(weights))
        .sum()
        .mul_scalar(how.temperature.powi(2));
    let values_of = |x: &Tensor<1>| values(&x.clone().inner());
    let mut results = vec![
        ("cross-entropy", values_of(&cross_entropy)),
        ("divergence", values_of(&divergence)),
    ];
    let loss = match how.alpha {
        // 0 times a non-finite divergence would not be 0.
        0.0 => cross_entropy,
        alpha => cross_entropy
            .mul_scalar(1.0 - alpha)
            .add(divergence.mul_scalar(alpha)),
    };
    let d_student = gradient(&student, &loss.mul_scalar(0.25).backward());
    results.push(("gradient", d_student));
    results
}

#[test]
fn losses_are_not_finite_exactly_where_the_reference_is() {
    let (mut numbers, mut mismatches) = (Numbers::new(109), Mismatches::default());
    for ([m, d, v], dtype) in [[1, 3, 5], [7, 8, 33], [6, 16, 700]]
        .into_iter()
        .flat_map(|shape| BOTH.map(|dtype| (shape, dtype)))
    {
        let good = [m, m, v].map(|rows| numbers.tensor([rows, d]).cast(dtype.dtype()));
        let targets: Vec<u32> = (0..m).map(|_| numbers.below(v) as u32).collect();
        let supervision = Supervision::new(&targets, &vec![0.5; m]);
        let how = Distillation {
            alpha: 0.3,
            temperature: 2.5,
        };
        for (i, input) in ["student", "teacher", "head"].iter().enumerate() {
            for bad in BAD {
                for index in places(&mut numbers, good[i].shape().num_elements()) {
                    let mut all = good.clone();
                    all[i] = poisoned(&all[i], index, bad);
                    let wide = all.clone().map(|x| x.cast(DType::F32));
                    let expected = losses([&wide[0], &wide[1]], &wide[2], &supervision, how);
                    let [student, teacher, head] = all;
                    let head = FrozenWeight::new(values(&head), [v, d], dtype, &test_device());
                    let both = [student.clone(), teacher];
                    let ours = distilled_cross_entropy(both, &head, &supervision, how, 0.25, 4);
                    let ours = vec![
                        ("cross-entropy", vec![ours.cross_entropy_sum as f32]),
                        ("divergence", vec![ours.divergence_sum as f32]),
                        ("gradient", values(&ours.d_hidden)),
                    ];
                    let name = format!("{m} {d} {v} {dtype:?}, {bad} in {input} at {index}");
                    mismatches.compare(&format!("{name}, distilled"), &ours, &expected);
                    let hard = Distillation { alpha: 0.0, ..how };
                    let expected = losses([&wide[0], &wide[0]], &wide[2], &supervision, hard);
                    let plain = linear_cross_entropy(student, &head, &supervision, 0.25, 4);
                    let ours = vec![
                        ("cross-entropy", vec![plain.loss_sum as f32]),
                        ("divergence", expected[1].1.clone()),
                        ("gradient", values(&plain.d_hidden)),
                    ];
                    mismatches.compare(&name, &ours, &expected);
                }
            }
        }
    }
    mismatches.assert_none();
}
