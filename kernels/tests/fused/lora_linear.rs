//! The adapted linear map: value and the gradients of its input and factors.

use burn::tensor::Tensor;
use tooltune_kernels::lora_linear::{Dropout, LoraFactors, lora_linear, reference};

use crate::support::{Numbers, assert_near, gradient, gradients, leaf, on_threads, values};

#[derive(Debug)]
struct Case {
    x: Tensor<2>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    a: Tensor<2>,
    b: Tensor<2>,
    dropout: Option<Tensor<2>>,
    dy: Tensor<2>,
}

type Map = fn(
    Tensor<2>,
    &Tensor<2>,
    Option<&Tensor<1>>,
    Option<(&LoraFactors, Option<Dropout>)>,
) -> Tensor<2>;

/// Value, then gradients of x, a and b.
fn run(map: Map, case: &Case) -> [Vec<f32>; 4] {
    let x = leaf(&case.x);
    let factors = LoraFactors {
        a: leaf(&case.a),
        b: leaf(&case.b),
        scaling: 1.5,
    };
    let dropout = case.dropout.clone().map(|d| Dropout(Tensor::from_inner(d)));
    let y = map(
        x.clone(),
        &case.weight,
        case.bias.as_ref(),
        Some((&factors, dropout)),
    );
    let value = values(&y.clone().inner());
    let found = gradients(y, &case.dy);
    [
        value,
        gradient(&x, &found),
        gradient(&factors.a, &found),
        gradient(&factors.b, &found),
    ]
}

fn case(numbers: &mut Numbers, [n, inputs, outputs, rank]: [usize; 4]) -> Case {
    Case {
        x: numbers.tensor([n, inputs]),
        weight: numbers.tensor([outputs, inputs]),
        bias: (n % 2 == 0).then(|| numbers.tensor([outputs])),
        a: numbers.tensor([rank, inputs]),
        b: numbers.tensor([outputs, rank]),
        dropout: None,
        dy: numbers.tensor([n, outputs]),
    }
}

const SHAPES: [[usize; 4]; 7] = [
    [1, 1, 1, 1],
    [1, 576, 192, 8],
    [7, 33, 65, 3],
    [24, 64, 40, 16],
    [130, 576, 192, 8],
    [257, 100, 300, 64],
    [40, 192, 576, 1],
];

#[test]
fn value_and_gradients_agree_with_the_reference() {
    let mut numbers = Numbers::new(11);
    for shape in SHAPES {
        let mut case = case(&mut numbers, shape);
        for dropped in [false, true] {
            case.dropout = dropped.then(|| {
                numbers
                    .tensor([shape[0], shape[1]])
                    .greater_elem(0.0)
                    .float()
                    .mul_scalar(2.0)
            });
            let ours = run(lora_linear, &case);
            let expected = run(reference::lora_linear, &case);
            for (name, (ours, expected)) in ["y", "dx", "da", "db"]
                .iter()
                .zip(ours.iter().zip(&expected))
            {
                assert_near(
                    &format!("{shape:?}, dropped {dropped}, {name}"),
                    ours,
                    expected,
                );
            }
        }
    }
}

#[test]
fn without_autodiff_and_without_an_adapter_the_value_is_the_same() {
    let mut numbers = Numbers::new(12);
    for shape in SHAPES {
        let case = case(&mut numbers, shape);
        let factors = LoraFactors {
            a: case.a.clone(),
            b: case.b.clone(),
            scaling: 0.5,
        };
        for adapter in [None, Some((&factors, None))] {
            let run = |map: Map| {
                values(&map(
                    case.x.clone(),
                    &case.weight,
                    case.bias.as_ref(),
                    adapter.clone(),
                ))
            };
            assert_near(
                &format!("{shape:?}"),
                &run(lora_linear),
                &run(reference::lora_linear),
            );
        }
    }
}

#[test]
fn a_frozen_layer_hands_the_gradient_of_its_input_down() {
    let mut numbers = Numbers::new(13);
    let case = case(&mut numbers, [19, 48, 80, 4]);
    let run = |map: Map| {
        let x = leaf(&case.x);
        let y = map(x.clone(), &case.weight, None, None);
        gradient(&x, &gradients(y, &case.dy))
    };
    assert_near("dx", &run(lora_linear), &run(reference::lora_linear));
}

#[test]
fn views_that_are_not_contiguous_give_the_same() {
    let mut numbers = Numbers::new(14);
    let x = numbers.tensor([30, 20]).transpose();
    let weight = numbers.tensor([30, 50]).transpose().narrow(0, 3, 40);
    let ours = values(&lora_linear(x.clone(), &weight, None, None));
    assert_near(
        "y",
        &ours,
        &values(&reference::lora_linear(x, &weight, None, None)),
    );
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let mut numbers = Numbers::new(15);
    let case = case(&mut numbers, [300, 200, 260, 8]);
    let one = on_threads(1, || run(lora_linear, &case));
    assert!(one == on_threads(2, || run(lora_linear, &case)));
}
