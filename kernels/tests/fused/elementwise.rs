//! RMSNorm, rotary embedding and SwiGLU: values and gradients.

use burn::tensor::{DType, Tensor, TensorData};
use tooltune_kernels::RopeTable;
use tooltune_kernels::geglu::{self, geglu};
use tooltune_kernels::rms_norm::rms_norm;
use tooltune_kernels::rope::{self, rope};
use tooltune_kernels::swiglu::{self, swiglu};

use crate::backend::elementwise::{self as backend, Gate};
use crate::bounds::Quantity;
use crate::support::{
    BOTH_TYPES, Numbers, assert_near_in, gradient, gradients, leaf, on_threads, test_device,
    under_test, values,
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

type Rotation = fn(Tensor<3>, &RopeTable, usize) -> Tensor<3>;

#[test]
fn rms_norm_matches_the_reference() {
    backend::rms_norms(&under_test(), &SHAPES);
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
    let gates = [swiglu, swiglu::reference::swiglu as Gate];
    backend::gates(&under_test(), gates, &SHAPES, 12.0);
}

#[test]
fn geglu_matches_the_reference() {
    let gates = [geglu, geglu::reference::geglu as Gate];
    backend::gates(&under_test(), gates, &SHAPES, 6.0);
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
    backend::head_norms(&under_test(), &[([130, 4, 128], vec![128; 3])]);
}

#[test]
fn partial_rotation_matches_the_reference() {
    backend::ropes(
        &under_test(),
        &[
            ([7, 4, 16], [12, 3]),
            ([3, 15, 64], [48, 12]),
            ([50, 3, 64], [16, 2]),
            ([5, 2, 128], [96, 2]),
        ],
    );
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

fn table(numbers: &mut Numbers, n: usize, c: usize) -> RopeTable {
    let [table, _] = backend::tables(&under_test(), numbers, n, c);
    table
}

#[test]
fn rope_matches_the_reference() {
    backend::ropes(
        &under_test(),
        &[
            ([1, 1, 2], [2, 1]),
            ([1, 3, 2], [2, 2]),
            ([3, 15, 64], [64, 12]),
            ([50, 3, 64], [64, 0]),
            ([7, 2, 10], [10, 1]),
            ([200, 48, 64], [64, 40]),
        ],
    );
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
    backend::selected_rows(&under_test(), &[([9, 7], vec![0, 2, 3, 8])]);
}
