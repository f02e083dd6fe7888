//! Stacked LoRA linear layers: value and gradients of input, factors and residual.

use std::sync::Arc;

use burn::tensor::{DType, Tensor};
use tooltune_kernels::lora_linear::{
    AdapterLayout, AdapterPart, InputTransform, LinearExtras, SharedGradient, StackedAdapter,
    StackedLinear, lora_linear, reference,
};
use tooltune_kernels::{ComputeDtype, Dropout, FrozenWeight, rms_norm};

use crate::support::{
    Numbers, assert_near_in, gradient, gradients, leaf, on_threads, test_device, values,
};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape<'a> {
    pub(crate) n: usize,
    pub(crate) inputs: usize,
    pub(crate) outputs: &'a [usize],
    /// 0 for a layer without an adapter.
    pub(crate) ranks: &'a [usize],
}

impl<'a> Shape<'a> {
    pub(crate) const fn new(
        n: usize,
        inputs: usize,
        outputs: &'a [usize],
        ranks: &'a [usize],
    ) -> Self {
        Self {
            n,
            inputs,
            outputs,
            ranks,
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) x: Tensor<2>,
    pub(crate) linear: StackedLinear,
    pub(crate) residual: Option<Tensor<2>>,
    pub(crate) dropout: Vec<Option<Dropout>>,
    pub(crate) transform: InputTransform,
    pub(crate) dy: Tensor<2>,
}

const SHAPES: [Shape<'_>; 12] = [
    Shape::new(1, 1, &[1], &[1]),
    Shape::new(1, 576, &[576, 192, 192], &[8, 8, 8]),
    Shape::new(7, 33, &[65], &[3]),
    Shape::new(24, 64, &[40, 31], &[16, 5]),
    Shape::new(130, 576, &[576, 192, 192], &[8, 0, 16]),
    Shape::new(257, 100, &[300], &[64]),
    Shape::new(40, 192, &[33, 33, 33], &[0, 1, 2]),
    Shape::new(61, 48, &[96], &[0]),
    // Deeper than one accumulation step, for widened elements and for pairs, in both directions.
    Shape::new(61, 5001, &[200], &[4]),
    Shape::new(50, 200, &[4500, 31], &[2, 3]),
    Shape::new(33, 6401, &[40], &[3]),
    Shape::new(33, 40, &[6200, 31], &[2, 3]),
];

/// The varied settings of a case other than its shape.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Plain,
    Normed,
    Gated,
    Biased,
    Residual,
    Dropped,
}

pub(crate) const KINDS: [Kind; 6] = [
    Kind::Plain,
    Kind::Normed,
    Kind::Gated,
    Kind::Biased,
    Kind::Residual,
    Kind::Dropped,
];

pub(crate) fn case(
    numbers: &mut Numbers,
    shape: Shape<'_>,
    kind: Kind,
    dtype: ComputeDtype,
) -> Case {
    let Shape {
        n,
        inputs,
        outputs,
        ranks,
    } = shape;
    let total: usize = outputs.iter().sum();
    let adapted: Vec<_> = ranks
        .iter()
        .map(|&rank| (rank > 0).then_some(AdapterPart { rank, scaling: 1.5 }))
        .collect();
    let layout = AdapterLayout::new(inputs, outputs, &adapted);
    let adapter = (!layout.is_empty())
        .then(|| StackedAdapter::new(numbers.tensor([layout.len()]), Arc::new(layout)));
    let weight = numbers.floats(total * inputs);
    let dropout = |layer: usize| Dropout {
        state: 7 + layer as u64,
        threshold: 20_000,
    };
    let y_dtype = if kind == Kind::Residual {
        DType::F32
    } else {
        dtype.dtype()
    };
    Case {
        x: match kind {
            Kind::Normed => numbers.tensor([n, inputs]),
            Kind::Gated => numbers.tensor([n, 2 * inputs]).cast(dtype.dtype()),
            _ => numbers.tensor([n, inputs]).cast(dtype.dtype()),
        },
        transform: match kind {
            Kind::Normed => InputTransform::Normed {
                weight: Box::new(numbers.tensor([inputs])),
                // A norm of one element is its sign; with a small epsilon its gradient is only
                // rounding error.
                eps: if inputs == 1 { 1.0 } else { 1e-5 },
            },
            Kind::Gated => InputTransform::Gated,
            _ => InputTransform::Plain,
        },
        linear: StackedLinear {
            weight: FrozenWeight::new(weight, [total, inputs], dtype, &test_device()),
            bias: (kind == Kind::Biased).then(|| numbers.tensor([total])),
            out_features: outputs.into(),
            adapter,
        },
        residual: (kind == Kind::Residual).then(|| numbers.tensor([n, total])),
        dropout: match kind {
            // The second layer has no dropout.
            Kind::Dropped => (0..outputs.len())
                .map(|m| (m != 1).then(|| dropout(m)))
                .collect(),
            _ => Vec::new(),
        },
        dy: numbers.tensor([n, total]).cast(y_dtype),
    }
}

pub(crate) type LoraLinear = fn(Tensor<2>, &StackedLinear, LinearExtras) -> Tensor<2>;

/// Value, then gradients of x, factors and residual.
pub(crate) fn run(operation: LoraLinear, case: &Case) -> Vec<(&'static str, Vec<f32>)> {
    let x = leaf(&case.x);
    let mut linear = case.linear.clone();
    linear.adapter = linear.adapter.map(|adapter| adapter.tracked(|f| leaf(&f)));
    let residual = case.residual.as_ref().map(leaf);
    let extras = LinearExtras {
        residual: residual.clone(),
        dropout: case.dropout.clone(),
        transform: case.transform.clone(),
        ..LinearExtras::default()
    };
    let y = operation(x.clone(), &linear, extras);
    let mut results = vec![("y", values(&y.clone().inner()))];
    let all = gradients(y, &case.dy);
    results.push(("dx", gradient(&x, &all)));
    results.extend(
        linear
            .adapter
            .map(|adapter| ("factors", gradient(&adapter.factors, &all))),
    );
    results.extend(residual.map(|residual| ("residual", gradient(&residual, &all))));
    results
}

/// Compares value and all gradients with the reference.
pub(crate) fn compare(numbers: &mut Numbers, shape: Shape<'_>, kind: Kind, compute: ComputeDtype) {
    let case = case(numbers, shape, kind, compute);
    let (ours, expected) = (run(lora_linear, &case), run(reference::lora_linear, &case));
    assert_eq!(ours.len(), expected.len());
    for ((name, ours), (_, expected)) in ours.iter().zip(&expected) {
        let name = format!("{shape:?}, {kind:?}, {compute:?}, {name}");
        assert_near_in(compute.dtype(), &name, ours, expected);
    }
}

fn assert_agreement(dtype: ComputeDtype) {
    let mut numbers = Numbers::new(11);
    for shape in SHAPES {
        for kind in KINDS {
            compare(&mut numbers, shape, kind, dtype);
        }
    }
}

#[test]
fn value_and_gradients_match_the_reference() {
    assert_agreement(ComputeDtype::F32);
}

#[test]
fn bf16_value_and_gradients_match_the_reference() {
    assert_agreement(ComputeDtype::Bf16);
}

/// Bitwise: a block that is recomputed for its gradients gives the same results.
#[test]
fn an_unused_output_changes_no_gradient() {
    let mut numbers = Numbers::new(19);
    let unread: LoraLinear = |x, linear, extras| {
        let unread = true;
        lora_linear(x, linear, LinearExtras { unread, ..extras })
    };
    for dtype in [ComputeDtype::F32, ComputeDtype::Bf16] {
        for shape in SHAPES {
            for kind in KINDS {
                let case = case(&mut numbers, shape, kind, dtype);
                let (read, unread) = (run(lora_linear, &case), run(unread, &case));
                assert!(read[1..] == unread[1..], "{shape:?}, {kind:?}, {dtype:?}");
            }
        }
    }
}

#[test]
fn without_autodiff_the_value_is_the_same() {
    let mut numbers = Numbers::new(12);
    for dtype in [ComputeDtype::F32, ComputeDtype::Bf16] {
        for shape in SHAPES {
            let case = case(&mut numbers, shape, Kind::Dropped, dtype);
            let extras = || LinearExtras {
                dropout: case.dropout.clone(),
                ..LinearExtras::default()
            };
            let plain = values(&lora_linear(case.x.clone(), &case.linear, extras()));
            assert_eq!(plain, run(lora_linear, &case)[0].1, "{shape:?}, {dtype:?}");
        }
    }
}

/// `finite_differences` relies on this: it differentiates the norm and the plain layer separately,
/// because the reference rounds a norm to the dtype of the weight.
#[test]
fn the_normed_reference_is_the_norm_before_plain_layers() {
    let mut numbers = Numbers::new(18);
    for shape in SHAPES {
        let normed = case(&mut numbers, shape, Kind::Normed, ComputeDtype::F32);
        let (found, expected) = (
            run(reference::lora_linear, &normed),
            run(
                |x, linear, extras| {
                    let InputTransform::Normed { weight, eps } = extras.transform else {
                        panic!("a norm");
                    };
                    let x = rms_norm::reference::rms_norm(x, &weight, eps, DType::F32);
                    let extras = LinearExtras {
                        transform: InputTransform::Plain,
                        ..extras
                    };
                    reference::lora_linear(x, linear, extras)
                },
                &normed,
            ),
        );
        assert!(found == expected, "{shape:?}");
    }
}

#[test]
fn noncontiguous_views_give_equal_results() {
    let mut numbers = Numbers::new(14);
    let shape = Shape::new(20, 30, &[50], &[4]);
    for dtype in [ComputeDtype::F32, ComputeDtype::Bf16] {
        let case = case(&mut numbers, shape, Kind::Plain, dtype);
        let view = case.x.clone().transpose().mul_scalar(1.0).transpose();
        let ours = lora_linear(view, &case.linear, LinearExtras::default());
        let expected = lora_linear(case.x, &case.linear, LinearExtras::default());
        assert_eq!(values(&ours), values(&expected));
    }
}

/// Invariant: The number of threads does not change a bit of a result.
#[test]
fn results_are_bit_identical_for_any_number_of_threads() {
    let mut numbers = Numbers::new(15);
    for shape in [
        Shape::new(300, 200, &[260, 96], &[8, 8]),
        // A thread's blocks have 12 rows or fewer only for some thread counts.
        Shape::new(60, 1536, &[64], &[8]),
        // Threads split the panels of one block; the split must not affect the result.
        Shape::new(16, 576, &[576], &[8]),
        Shape::new(1, 576, &[576, 192, 192], &[8, 8, 8]),
    ] {
        for dtype in [ComputeDtype::F32, ComputeDtype::Bf16] {
            for kind in KINDS {
                let case = case(&mut numbers, shape, kind, dtype);
                let one = on_threads(1, || run(lora_linear, &case));
                for threads in [2, 3, 5] {
                    let is_same = one == on_threads(threads, || run(lora_linear, &case));
                    assert!(is_same, "{shape:?}, {kind:?}, {dtype:?}, {threads} threads");
                }
            }
        }
    }
}

#[test]
fn nonfinite_values_stay_in_their_row() {
    let mut numbers = Numbers::new(16);
    let shape = Shape::new(50, 64, &[96], &[8]);
    for dtype in [ComputeDtype::F32, ComputeDtype::Bf16] {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut case = case(&mut numbers, shape, Kind::Plain, dtype);
            let poison = Tensor::<2>::full([1, 64], bad, &test_device()).cast(dtype.dtype());
            case.x = case.x.slice_assign([13..14, 0..64], poison);
            let y = values(&lora_linear(case.x, &case.linear, LinearExtras::default()));
            for (row, values) in y.chunks(96).enumerate() {
                assert_eq!(
                    values.iter().all(|v| v.is_finite()),
                    row != 13,
                    "{dtype:?}, {bad}"
                );
            }
        }
    }
}

#[test]
fn a_packed_weight_equals_the_rounded_weight() {
    let mut numbers = Numbers::new(17);
    let weight = numbers.floats(37 * 45);
    let packed = FrozenWeight::new(weight.clone(), [37, 45], ComputeDtype::Bf16, &test_device());
    let rounded: Vec<f32> = weight
        .iter()
        .map(|&w| burn::tensor::bf16::from_f32(w).to_f32())
        .collect();
    assert_eq!(values(&packed.to_tensor()), rounded);
}

/// A stack that reads the norm of a residual stream, and a later one that adds to the stream.
#[test]
fn a_shared_gradient_equals_the_sum_by_autodiff() {
    let mut numbers = Numbers::new(23);
    for dtype in [ComputeDtype::F32, ComputeDtype::Bf16] {
        let shape = |inputs, outputs| Shape::new(13, inputs, outputs, &[4]);
        let normed = case(&mut numbers, shape(24, &[16]), Kind::Normed, dtype);
        let adds = case(&mut numbers, shape(16, &[24]), Kind::Residual, dtype);
        let dx = [false, true].map(|is_shared| {
            let shared = is_shared.then(SharedGradient::default);
            let x = leaf(&normed.x);
            let extras = |case: &Case, residual| LinearExtras {
                transform: case.transform.clone(),
                residual,
                shared_gradient: shared.clone(),
                ..LinearExtras::default()
            };
            let y = lora_linear(x.clone(), &normed.linear, extras(&normed, None));
            let y = lora_linear(y, &adds.linear, extras(&adds, Some(x.clone())));
            let grads = gradients(y, &adds.dy);
            gradient(&x, &grads)
        });
        assert!(dx[0] == dx[1], "{dtype:?}");
    }
}
