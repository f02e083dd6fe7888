//! RMSNorm, rotary embedding and SwiGLU: values and gradients.

use burn::tensor::{Tensor, TensorData};
use tooltune_kernels::RopeTable;
use tooltune_kernels::rms_norm::{self, rms_norm};
use tooltune_kernels::rope::{self, rope};
use tooltune_kernels::swiglu::{self, swiglu};

use crate::support::{
    Numbers, assert_near, gradient, gradients, leaf, on_threads, test_device, values,
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

type Norm = fn(Tensor<2>, &Tensor<1>, f64) -> Tensor<2>;
type Gate = fn(Tensor<2>, Tensor<2>) -> Tensor<2>;
type Rotation = fn(Tensor<3>, &RopeTable) -> Tensor<3>;

/// The same operation twice: ours and the reference.
fn compare(name: &str, ours: Vec<Vec<f32>>, expected: Vec<Vec<f32>>) {
    for (i, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
        assert_near(&format!("{name}, result {i}"), ours, expected);
    }
}

#[test]
fn rms_norm_agrees_with_the_reference() {
    let mut numbers = Numbers::new(31);
    for shape in SHAPES {
        let x = numbers.tensor(shape).mul_scalar(2.0);
        let weight = numbers.tensor([shape[1]]);
        let dy = numbers.tensor(shape);
        let run = |norm: Norm| {
            let tracked = leaf(&x);
            let y = norm(tracked.clone(), &weight, 1e-5);
            let value = values(&y.clone().inner());
            let plain = values(&norm(x.clone(), &weight, 1e-5));
            vec![value, plain, gradient(&tracked, &gradients(y, &dy))]
        };
        // One number of unit root mean square has a gradient of 0, up to rounding.
        let compared = if shape[1] == 1 { 2 } else { 3 };
        let (ours, expected) = (run(rms_norm), run(rms_norm::reference::rms_norm));
        compare(
            &format!("{shape:?}"),
            ours[..compared].to_vec(),
            expected[..compared].to_vec(),
        );
    }
}

#[test]
fn a_row_of_zeros_stays_zero_and_nan_stays_in_its_row() {
    let device = test_device();
    let mut floats = vec![0.0f32; 3 * 40];
    floats[45] = f32::NAN;
    floats[80] = 1.0;
    let x = Tensor::<2>::from_data(TensorData::new(floats, [3, 40]), &device);
    let y = values(&rms_norm(x, &Tensor::ones([40], &device), 1e-5));
    assert!(y[..40].iter().all(|v| *v == 0.0));
    assert!(y[40..80].iter().all(|v| v.is_nan()));
    assert!(y[80..].iter().all(|v| v.is_finite()));
}

#[test]
fn swiglu_agrees_with_the_reference() {
    let mut numbers = Numbers::new(32);
    for shape in SHAPES {
        let gate = numbers.tensor(shape).mul_scalar(12.0);
        let (up, dy) = (numbers.tensor(shape), numbers.tensor(shape));
        let run = |f: Gate| {
            let (gate, up) = (leaf(&gate), leaf(&up));
            let y = f(gate.clone(), up.clone());
            let value = values(&y.clone().inner());
            let plain = values(&f(gate.clone().inner(), up.clone().inner()));
            let found = gradients(y, &dy);
            vec![value, plain, gradient(&gate, &found), gradient(&up, &found)]
        };
        compare(
            &format!("{shape:?}"),
            run(swiglu),
            run(swiglu::reference::swiglu),
        );
    }
}

#[test]
fn swiglu_of_large_values_neither_overflows_nor_hides_nan() {
    let device = test_device();
    let gate = [-1e30, -200.0, 200.0, 1e30, f32::NAN, 1.0];
    let gate = Tensor::<2>::from_data(TensorData::new(gate.to_vec(), [1, 6]), &device);
    let y = values(&swiglu(gate, Tensor::ones([1, 6], &device)));
    assert_eq!(y[..4], [0.0, 0.0, 200.0, 1e30]);
    assert!(y[4].is_nan() && y[5].is_finite());
}

#[test]
fn rope_agrees_with_the_reference() {
    let mut numbers = Numbers::new(33);
    for [n, heads, c] in [
        [1, 1, 2],
        [3, 9, 64],
        [50, 3, 64],
        [7, 2, 10],
        [200, 14, 64],
    ] {
        let positions: Vec<u32> = (0..n).map(|_| numbers.below(5000) as u32).collect();
        let frequencies: Vec<f64> = (0..c / 2)
            .map(|i| 10_000f64.powf(-2.0 * i as f64 / c as f64))
            .collect();
        let table = RopeTable::new(&positions, &frequencies, 1.0, &test_device());
        let (x, dy) = (numbers.tensor([n, heads, c]), numbers.tensor([n, heads, c]));
        let run = |f: Rotation| {
            let tracked = leaf(&x);
            let y = f(tracked.clone(), &table);
            let value = values(&y.clone().inner());
            let plain = values(&f(x.clone(), &table));
            vec![value, plain, gradient(&tracked, &gradients(y, &dy))]
        };
        compare(
            &format!("{n} {heads} {c}"),
            run(rope),
            run(rope::reference::rope),
        );
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let mut numbers = Numbers::new(34);
    let (x, up) = (numbers.tensor([200, 700]), numbers.tensor([200, 700]));
    let weight = numbers.tensor([700]);
    let run = |threads| {
        on_threads(threads, || {
            let (x, up) = (leaf(&x), leaf(&up));
            let y = swiglu(rms_norm(x.clone(), &weight, 1e-5), up.clone());
            let value = values(&y.clone().inner());
            let found = y.sum().backward();
            [value, gradient(&x, &found), gradient(&up, &found)]
        })
    };
    assert!(run(1) == run(2));
}
