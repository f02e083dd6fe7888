//! RMSNorm, rotary embedding and SwiGLU: values and gradients.

use burn::tensor::{DType, Tensor, TensorData};
use tooltune_kernels::geglu::{self, geglu};
use tooltune_kernels::head_norm::{self, head_norm};
use tooltune_kernels::rms_norm::{self, rms_norm};
use tooltune_kernels::rope::{self, rope};
use tooltune_kernels::swiglu::{self, swiglu};
use tooltune_kernels::{RopeTable, RowIndices, SpanNorm, select_rows};

use crate::bounds::Quantity;
use crate::support::{
    BOTH_TYPES, Numbers, assert_near_in, gradient, gradients, leaf, on_threads, test_device, values,
};

const SHAPES: [[usize; 2]; 7] = [
    [1, 1],
    [1, 576],
    [5, 33],
    [3, 64],
    [17, 31],
    [300, 576],
    [40, 1536],
];

pub(crate) type Norm = fn(Tensor<2>, &Tensor<1>, f64, DType) -> Tensor<2>;
pub(crate) type Gate = fn(Tensor<2>) -> Tensor<2>;
pub(crate) type Rotation = fn(Tensor<3>, &RopeTable, usize) -> Tensor<3>;

/// Ours and the reference: value with autodiff, value without, gradient.
pub(crate) fn compare<const D: usize, const E: usize>(
    name: &str,
    (x, dy): (&Tensor<D>, &Tensor<E>),
    ours: &dyn Fn(Tensor<D>) -> Tensor<E>,
    reference: &dyn Fn(Tensor<D>) -> Tensor<E>,
) {
    let run = |f: &dyn Fn(Tensor<D>) -> Tensor<E>| {
        let tracked = leaf(x);
        let y = f(tracked.clone());
        assert_eq!(y.dtype(), dy.dtype(), "{name}");
        let value = values(&y.clone().inner());
        let plain = values(&f(x.clone()));
        let grads = gradients(y, dy);
        let dx = tracked.grad(&grads).expect("a leaf");
        assert_eq!(dx.dtype(), x.dtype(), "{name}");
        [value, plain, values(&dx)]
    };
    let (ours, expected) = (run(ours), run(reference));
    for (i, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
        assert_near_in(dy.dtype(), &format!("{name}, result {i}"), ours, expected);
    }
}

#[test]
fn rms_norm_matches_the_reference() {
    let mut numbers = Numbers::new(31);
    for output in BOTH_TYPES {
        for [n, d] in SHAPES {
            compare_rms_norm(&mut numbers, [n, d], output);
        }
    }
}

pub(crate) fn compare_rms_norm(numbers: &mut Numbers, [n, d]: [usize; 2], output: DType) {
    let x = numbers.tensor([n, d]).mul_scalar(2.0);
    let weight = numbers.tensor([d]);
    let dy = numbers.tensor([n, d]).cast(output);
    // The gradient of a norm of one element is eps / (x² + eps)^1.5 times it: with a small epsilon
    // it is only rounding error.
    let eps = if d == 1 { 1.0 } else { 1e-5 };
    let run = |norm: Norm, x: Tensor<2>| norm(x, &weight, eps, output);
    compare(
        &format!("{n} {d} {output:?}"),
        (&x, &dy),
        &|x| run(rms_norm, x),
        &|x| run(rms_norm::reference::rms_norm, x),
    );
}

#[test]
fn a_row_of_zeros_stays_zero_and_nan_stays_in_its_row() {
    let device = test_device();
    let mut floats = vec![0.0f32; 4 * 40];
    floats[45] = f32::NAN;
    floats[80] = 1.0;
    floats[125] = f32::INFINITY;
    let x = Tensor::<2>::from_data(TensorData::new(floats, [4, 40]), &device);
    for output in BOTH_TYPES {
        let (x, weight) = (leaf(&x), Tensor::ones([40], &device));
        let y = rms_norm(x.clone(), &weight, 1e-5, output);
        let dx = gradient(
            &x,
            &gradients(y.clone(), &Tensor::<2>::ones([4, 40], &device).cast(output)),
        );
        for values in [values(&y.inner()), dx] {
            assert!(values[..40].iter().all(|v| v.is_finite()));
            assert!(values[40..80].iter().all(|v| v.is_nan()));
            assert!(values[80..120].iter().all(|v| v.is_finite()));
            assert!(values[120..].iter().any(|v| v.is_nan()));
        }
    }
}

#[test]
fn swiglu_matches_the_reference() {
    let mut numbers = Numbers::new(32);
    for dtype in BOTH_TYPES {
        for [n, f] in SHAPES {
            let gate_up = numbers.tensor([n, 2 * f]).mul_scalar(12.0).cast(dtype);
            let dy = numbers.tensor([n, f]).cast(dtype);
            let gates: [Gate; 2] = [swiglu, swiglu::reference::swiglu];
            let name = format!("{n} {f} {dtype:?}");
            compare(&name, (&gate_up, &dy), &gates[0], &gates[1]);
        }
    }
}

#[test]
fn geglu_matches_the_reference() {
    let mut numbers = Numbers::new(38);
    for dtype in BOTH_TYPES {
        for [n, f] in SHAPES {
            let gate_up = numbers.tensor([n, 2 * f]).mul_scalar(6.0).cast(dtype);
            let dy = numbers.tensor([n, f]).cast(dtype);
            let gates: [Gate; 2] = [geglu, geglu::reference::geglu];
            let name = format!("geglu {n} {f} {dtype:?}");
            compare(&name, (&gate_up, &dy), &gates[0], &gates[1]);
        }
    }
}

#[test]
fn geglu_of_large_values_is_finite() {
    let gate = [-1e15, -200.0, 200.0, 1e15, f32::NAN];
    let gate_up = [gate, [1.0; 5]].concat();
    let gate_up = Tensor::<2>::from_data(TensorData::new(gate_up, [1, 10]), &test_device());
    let tracked = leaf(&gate_up);
    let y = geglu(tracked.clone());
    let grads = y.clone().sum().backward();
    let y = values(&y.inner());
    assert_eq!(y[..4], [0.0, 0.0, 200.0, 1e15]);
    let slopes = gradient(&tracked, &grads);
    assert_eq!(slopes[..4], [0.0, 0.0, 1.0, 1.0]);
    assert!(y[4].is_nan() && slopes[4].is_nan());
}

#[test]
fn head_norms_match_the_reference() {
    let mut numbers = Numbers::new(39);
    for dtype in BOTH_TYPES {
        for ([n, heads, c], spans) in [
            ([1, 1, 2], vec![2]),
            ([7, 8, 24], vec![24; 6]),
            ([50, 8, 16], vec![64, 32]),
            ([3, 5, 70], vec![70, 140]),
            ([130, 4, 128], vec![128; 3]),
        ] {
            let norm = SpanNorm {
                weight: numbers.tensor([spans.iter().sum()]).add_scalar(1.0),
                spans: spans.clone().into(),
                eps: 1e-6,
            };
            let x = numbers.tensor([n, heads, c]).mul_scalar(3.0).cast(dtype);
            let dy = numbers.tensor([n, heads, c]).cast(dtype);
            let name = format!("{n} {heads} {c} {spans:?} {dtype:?}");
            compare(&name, (&x, &dy), &|x| head_norm(x, &norm), &|x| {
                head_norm::reference::head_norm(x, &norm)
            });
        }
    }
}

#[test]
fn partial_rotation_matches_the_reference() {
    let mut numbers = Numbers::new(40);
    for dtype in BOTH_TYPES {
        for ([n, heads, c], turned_columns, turned) in [
            ([7, 4, 16], 12, 3),
            ([3, 15, 64], 48, 12),
            ([50, 3, 64], 16, 2),
            ([5, 2, 128], 96, 2),
        ] {
            let table = table(&mut numbers, n, turned_columns);
            let x = numbers.tensor([n, heads, c]).cast(dtype);
            let dy = numbers.tensor([n, heads, c]).cast(dtype);
            let rotations: [Rotation; 2] = [rope, rope::reference::rope];
            compare(
                &format!("{turned_columns} of {n} {heads} {c} {dtype:?}"),
                (&x, &dy),
                &|x| rotations[0](x, &table, turned),
                &|x| rotations[1](x, &table, turned),
            );
        }
    }
}

#[test]
fn swiglu_of_large_values_neither_overflows_nor_hides_nan() {
    let gate = [-1e30, -200.0, 200.0, 1e30, f32::NAN, f32::INFINITY];
    let gate_up = [gate, [1.0; 6]].concat();
    let gate_up = Tensor::<2>::from_data(TensorData::new(gate_up, [1, 12]), &test_device());
    for dtype in BOTH_TYPES {
        let y = values(&swiglu(gate_up.clone().cast(dtype)));
        assert_eq!(y[..3], [0.0, 0.0, 200.0]);
        let off = f64::from(y[3]) / 1e30 - 1.0;
        assert!(off.abs() < Quantity::Operation.bound_in(dtype), "{off}");
        assert!(y[4].is_nan() && y[5] == f32::INFINITY);
    }
}

#[test]
fn the_swiglu_gradient_leaves_a_shared_input_unchanged() {
    let mut numbers = Numbers::new(35);
    let gate_up = numbers.tensor([3, 8]);
    let original = values(&gate_up);
    let tracked = leaf(&gate_up);
    swiglu(tracked.clone()).sum().backward();
    assert_eq!(values(&gate_up), original);
    assert_eq!(values(&tracked.inner()), original);
}

pub(crate) fn table(numbers: &mut Numbers, n: usize, c: usize) -> RopeTable {
    let positions: Vec<u32> = (0..n).map(|_| numbers.below(5000) as u32).collect();
    let frequencies: Vec<f64> = (0..c / 2)
        .map(|i| 10_000f64.powf(-2.0 * i as f64 / c as f64))
        .collect();
    RopeTable::new(&positions, &frequencies, 1.0, &test_device())
}

#[test]
fn rope_matches_the_reference() {
    let mut numbers = Numbers::new(33);
    for dtype in BOTH_TYPES {
        for ([n, heads, c], turned) in [
            ([1, 1, 2], 1),
            ([1, 3, 2], 2),
            ([3, 15, 64], 12),
            ([50, 3, 64], 0),
            ([7, 2, 10], 1),
            ([200, 48, 64], 40),
        ] {
            let table = table(&mut numbers, n, c);
            let x = numbers.tensor([n, heads, c]).cast(dtype);
            let dy = numbers.tensor([n, heads, c]).cast(dtype);
            let rotations: [Rotation; 2] = [rope, rope::reference::rope];
            compare(
                &format!("{n} {heads} {c} {dtype:?}"),
                (&x, &dy),
                &|x| rotations[0](x, &table, turned),
                &|x| rotations[1](x, &table, turned),
            );
        }
    }
}

#[test]
fn rope_leaves_a_shared_input_and_other_heads_unchanged() {
    let mut numbers = Numbers::new(36);
    let table = table(&mut numbers, 5, 8);
    let all = numbers.tensor([9, 4, 8]);
    let original = values(&all);
    // A view that starts inside another tensor's memory.
    let x = all.clone().narrow(0, 2, 5);
    let expected = values(&rope::reference::rope(x.clone(), &table, 3));
    let rotated = values(&rope(x.clone(), &table, 3));
    assert_near_in(DType::F32, "a view", &rotated, &expected);
    assert_eq!(values(&all), original);
    for (rotated, x) in rotated
        .chunks(8)
        .zip(values(&x).chunks(8))
        .skip(3)
        .step_by(4)
    {
        assert_eq!(rotated, x);
    }
}

#[test]
fn rotated_nan_stays_in_its_pair() {
    let mut numbers = Numbers::new(37);
    let table = table(&mut numbers, 2, 8);
    let mut floats = numbers.floats(2 * 8);
    floats[1] = f32::NAN;
    let x = Tensor::<3>::from_data(TensorData::new(floats, [2, 1, 8]), &test_device());
    for dtype in BOTH_TYPES {
        let input = x.clone().cast(dtype);
        let tracked = leaf(&Tensor::<3>::ones([2, 1, 8], &test_device()).cast(dtype));
        let y = rope(tracked.clone(), &table, 1);
        let dx = gradient(&tracked, &gradients(y, &input));
        for values in [values(&rope(input, &table, 1)), dx] {
            for (i, value) in values.iter().enumerate() {
                assert_eq!(value.is_nan(), [1, 5].contains(&i), "{dtype:?}, number {i}");
            }
        }
    }
}

#[test]
fn infinity_affects_only_its_pair() {
    let mut numbers = Numbers::new(38);
    // No angle whose sine or cosine is 0, because infinity times 0 is NaN.
    let table = RopeTable::new(&[3, 4], &[1.0, 0.1, 0.01, 0.001], 1.0, &test_device());
    for bad in [f32::INFINITY, f32::NEG_INFINITY] {
        // The second element of pair 2 in the second row.
        let mut floats = numbers.floats(2 * 8);
        floats[8 + 6] = bad;
        let input = Tensor::<3>::from_data(TensorData::new(floats, [2, 1, 8]), &test_device());
        for dtype in BOTH_TYPES {
            let input = input.clone().cast(dtype);
            let rotated = |rotation: Rotation| {
                let x = leaf(&Tensor::<3>::ones([2, 1, 8], &test_device()).cast(dtype));
                let dx = gradient(&x, &gradients(rotation(x.clone(), &table, 1), &input));
                [values(&rotation(input.clone(), &table, 1)), dx]
            };
            let (ours, expected) = (rotated(rope), rotated(rope::reference::rope));
            for (ours, expected) in ours.iter().zip(&expected) {
                let pairs = ours.iter().zip(expected).enumerate();
                for (i, (ours, expected)) in pairs {
                    let is_bad = [8 + 2, 8 + 6].contains(&i);
                    assert_eq!(ours.is_infinite(), is_bad, "{dtype:?}, {bad}, number {i}");
                    assert!(!ours.is_nan(), "{dtype:?}, {bad}, number {i}");
                    assert!(!is_bad || ours == expected, "{dtype:?}, {bad}, number {i}");
                }
            }
        }
    }
}

/// Invariant: The number of threads does not change a bit of a result.
#[test]
fn results_are_bit_identical_for_any_number_of_threads() {
    let mut numbers = Numbers::new(34);
    let x = numbers.tensor([200, 1400]);
    let weight = numbers.tensor([1400]);
    let table = table(&mut numbers, 200, 14);
    for dtype in BOTH_TYPES {
        let run = |threads| {
            on_threads(threads, || {
                let x = leaf(&x);
                let y = rms_norm(x.clone(), &weight, 1e-5, dtype);
                let y = rope(y.reshape([200, 100, 14]), &table, 70).reshape([200, 1400]);
                let y = swiglu(y);
                let value = values(&y.clone().inner());
                [value, gradient(&x, &y.sum().backward())]
            })
        };
        assert!(run(1) == run(2));
    }
}

#[test]
fn selected_rows_and_their_gradient_match_the_reference() {
    let mut numbers = Numbers::new(91);
    let rows = RowIndices::new(&[0, 2, 3, 8]);
    for dtype in [DType::F32, DType::BF16] {
        let x: Tensor<2> = numbers.tensor([9, 7]);
        let x = x.cast(dtype);
        let dy = numbers.tensor([4, 7]).cast(dtype);
        let results = |select: fn(Tensor<2>, &RowIndices) -> Tensor<2>| {
            let x = leaf(&x);
            let y = select(x.clone(), &rows);
            [values(&y), gradient(&x, &gradients(y, &dy))]
        };
        let ours = results(select_rows::select_rows);
        assert_eq!(ours, results(select_rows::reference::select_rows));
    }
}
