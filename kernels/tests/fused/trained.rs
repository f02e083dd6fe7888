//! What an encoder trains as a whole: linear maps and layer norms, values and all gradients.

use burn::tensor::{DType, Tensor, TensorData};
use tooltune_kernels::dense::{self, Dense, InputTransform, dense};
use tooltune_kernels::layer_norm::{self, layer_norm};
use tooltune_kernels::{ComputeDtype, Documents};

use crate::support::{
    Numbers, assert_near, assert_near_in, gradient, gradients, leaf, on_threads, test_device,
    values,
};

/// Tokens, inputs, outputs: single ones, odd ones, those of MiniLM, and more tokens than are summed
/// at a time.
const SHAPES: [[usize; 3]; 8] = [
    [1, 1, 1],
    [1, 384, 384],
    [7, 33, 5],
    [2, 40, 64],
    [301, 384, 96],
    [64, 250, 384],
    [1601, 64, 200],
    [129, 1536, 384],
];

const BOTH: [ComputeDtype; 2] = [ComputeDtype::F32, ComputeDtype::Bf16];

/// Value and gradients of input, weight, bias and residual.
type Results = Vec<Vec<f32>>;

#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) x: Tensor<2>,
    pub(crate) weight: Tensor<2>,
    pub(crate) bias: Tensor<1>,
    pub(crate) residual: Option<Tensor<2>>,
    pub(crate) dy: Tensor<2>,
    dtype: ComputeDtype,
    transform: InputTransform,
}

impl Case {
    pub(crate) fn new(
        numbers: &mut Numbers,
        shape: [usize; 3],
        kind: (ComputeDtype, InputTransform, bool),
    ) -> Self {
        let ([n, inputs, outputs], (dtype, transform, has_residual)) = (shape, kind);
        let x = numbers.tensor([n, inputs]).mul_scalar(2.0);
        let dy = numbers.tensor([n, outputs]);
        Self {
            // A map reads a stream of f32, or what another map of its type has made.
            x: match transform {
                InputTransform::Plain => x,
                InputTransform::Gelu => x.cast(dtype.dtype()),
            },
            weight: numbers.tensor([outputs, inputs]),
            bias: numbers.tensor([outputs]),
            residual: has_residual.then(|| numbers.tensor([n, outputs])),
            dy: if has_residual {
                dy
            } else {
                dy.cast(dtype.dtype())
            },
            dtype,
            transform,
        }
    }

    pub(crate) fn run(&self, ours: bool) -> Results {
        let (x, weight, bias) = (leaf(&self.x), leaf(&self.weight), leaf(&self.bias));
        let residual = self.residual.as_ref().map(leaf);
        let y = if ours {
            let map = Dense::new(weight.clone(), bias.clone(), self.dtype);
            dense(x.clone(), &map, residual.clone(), self.transform)
        } else {
            dense::reference::dense(
                x.clone(),
                &weight,
                &bias,
                residual.clone(),
                self.transform,
                self.dtype.dtype(),
            )
        };
        assert_eq!(y.dtype(), self.dy.dtype());
        let mut results = vec![values(&y.clone().inner())];
        let found = gradients(y, &self.dy);
        let dx = x.grad(&found).expect("a leaf");
        assert_eq!(dx.dtype(), self.x.dtype());
        results.push(values(&dx));
        results.push(gradient(&weight, &found));
        results.push(gradient(&bias, &found));
        results.extend(residual.map(|residual| gradient(&residual, &found)));
        results
    }
}

#[test]
fn a_trained_map_agrees_with_the_reference() {
    let mut numbers = Numbers::new(81);
    for dtype in BOTH {
        for transform in [InputTransform::Plain, InputTransform::Gelu] {
            for has_residual in [false, true] {
                for shape in SHAPES {
                    let case = Case::new(&mut numbers, shape, (dtype, transform, has_residual));
                    let (ours, expected) = (case.run(true), case.run(false));
                    assert_eq!(ours.len(), expected.len());
                    for (i, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
                        let name = format!("{shape:?} {dtype:?} {transform:?} result {i}");
                        assert_near_in(dtype.dtype(), &name, ours, expected);
                    }
                }
            }
        }
    }
}

#[test]
fn a_map_without_autodiff_gives_the_same_values() {
    let mut numbers = Numbers::new(82);
    for dtype in BOTH {
        let case = Case::new(
            &mut numbers,
            [37, 96, 130],
            (dtype, InputTransform::Plain, true),
        );
        let map = Dense::new(case.weight.clone(), case.bias.clone(), dtype);
        let plain = dense(case.x.clone(), &map, case.residual.clone(), case.transform);
        assert_eq!(values(&plain), case.run(true)[0]);
    }
}

#[test]
fn gradients_of_weights_do_not_depend_on_the_threads() {
    let mut numbers = Numbers::new(83);
    for dtype in BOTH {
        let case = Case::new(
            &mut numbers,
            [1601, 64, 200],
            (dtype, InputTransform::Gelu, true),
        );
        assert_eq!(
            on_threads(1, || case.run(true)),
            on_threads(3, || case.run(true))
        );
    }
}

#[test]
fn nan_and_infinity_reach_every_gradient_that_they_touch() {
    let device = test_device();
    for dtype in BOTH {
        let mut x = vec![1.0f32; 3 * 64];
        x[70] = f32::NAN;
        let x =
            leaf(&Tensor::<2>::from_data(TensorData::new(x, [3, 64]), &device).cast(dtype.dtype()));
        let weight = leaf(&Tensor::<2>::ones([40, 64], &device));
        let bias = leaf(&Tensor::<1>::zeros([40], &device));
        let map = Dense::new(weight.clone(), bias.clone(), dtype);
        let y = dense(x.clone(), &map, None, InputTransform::Gelu);
        let value = values(&y.clone().inner());
        assert!(value[..40].iter().all(|v| v.is_finite()));
        assert!(value[40..80].iter().all(|v| v.is_nan()));
        assert!(value[80..].iter().all(|v| v.is_finite()));
        let dy = Tensor::<2>::ones([3, 40], &device).cast(dtype.dtype());
        let found = gradients(y, &dy);
        let dx = gradient(&x, &found);
        assert_eq!(dx.iter().filter(|v| v.is_nan()).count(), 1);
        let d_weight = gradient(&weight, &found);
        assert_eq!(d_weight.iter().filter(|v| v.is_nan()).count(), 40);
        assert!(gradient(&bias, &found).iter().all(|v| *v == 3.0));
    }
}

/// Weights far from 0 let the backward pass begin with the output; one of 0, with the input.
pub(crate) fn weight_for(far_from_zero: bool, weight: Tensor<1>) -> Tensor<1> {
    if far_from_zero {
        return weight.abs().add_scalar(0.5);
    }
    let rest = weight.clone().narrow(0, 1, weight.dims()[0] - 1);
    Tensor::cat(vec![weight.narrow(0, 0, 1).zeros_like(), rest], 0)
}

#[test]
fn layer_norm_agrees_with_the_reference() {
    let mut numbers = Numbers::new(84);
    let shapes = [[1, 3], [1, 384], [5, 33], [17, 31], [300, 384], [600, 96]];
    for ([n, d], far_from_zero) in shapes
        .into_iter()
        .flat_map(|shape| [(shape, true), (shape, false)])
    {
        let x = numbers.tensor([n, d]).mul_scalar(2.0).add_scalar(0.5);
        let (weight, bias) = (numbers.tensor([d]), numbers.tensor([d]));
        let weight = weight_for(far_from_zero, weight);
        let dy = numbers.tensor([n, d]);
        let results = [true, false].map(|ours| {
            let (x, w, b) = (leaf(&x), leaf(&weight), leaf(&bias));
            let norm = if ours {
                layer_norm
            } else {
                layer_norm::reference::layer_norm
            };
            let y = norm(x.clone(), &w, &b, 1e-12);
            let value = values(&y.clone().inner());
            let found = gradients(y, &dy);
            [
                value,
                gradient(&x, &found),
                gradient(&w, &found),
                gradient(&b, &found),
            ]
        });
        for (i, (ours, expected)) in results[0].iter().zip(&results[1]).enumerate() {
            assert_near(
                &format!("{n} {d} {far_from_zero} result {i}"),
                ours,
                expected,
            );
        }
    }
}

#[test]
fn layer_norm_does_not_depend_on_the_threads_and_lets_nan_through() {
    let mut numbers = Numbers::new(85);
    let (x, dy) = (numbers.tensor([1000, 48]), numbers.tensor([1000, 48]));
    let (weight, bias) = (numbers.tensor([48]), numbers.tensor([48]));
    let run = |weight: &Tensor<1>| {
        let (x, w, b) = (leaf(&x), leaf(weight), leaf(&bias));
        let found = gradients(layer_norm(x.clone(), &w, &b, 1e-5), &dy);
        [
            gradient(&x, &found),
            gradient(&w, &found),
            gradient(&b, &found),
        ]
    };
    for far_from_zero in [true, false] {
        let weight = weight_for(far_from_zero, weight.clone());
        assert_eq!(
            on_threads(1, || run(&weight)),
            on_threads(3, || run(&weight))
        );
    }
    let row = Tensor::<2>::from_data([[1.0, f32::NAN], [1.0, 2.0]], &test_device());
    let ones = Tensor::ones([2], &test_device());
    let y = values(&layer_norm(row, &ones, &ones, 1e-5));
    assert!(y[..2].iter().all(|v| v.is_nan()) && y[2..].iter().all(|v| v.is_finite()));
}

#[test]
fn an_encoder_block_of_both_types_learns_through_attention() {
    // Types meet where blocks use them: a stream of f32, projections and attention in the map's type.
    use tooltune_kernels::attention::{Causality, attention};
    let mut numbers = Numbers::new(86);
    let x = numbers.tensor([9, 32]);
    let (weight, bias) = (numbers.tensor([96, 32]), numbers.tensor([96]));
    let documents = Documents::new(&[0, 4, 9], 9);
    let run = |dtype: ComputeDtype| {
        let (x, w) = (leaf(&x), leaf(&weight));
        let map = Dense::new(w.clone(), leaf(&bias), dtype);
        let qkv = dense(x.clone(), &map, None, InputTransform::Plain).reshape([9, 12, 8]);
        let y = attention(qkv, 4, &documents, Causality::Bidirectional);
        assert_eq!(y.dtype(), dtype.dtype());
        let found = y.cast(DType::F32).sum().backward();
        [gradient(&x, &found), gradient(&w, &found)]
    };
    let (exact, rounded) = (run(ComputeDtype::F32), run(ComputeDtype::Bf16));
    for (exact, rounded) in exact.iter().zip(&rounded) {
        assert_near_in(DType::BF16, "bf16 against f32", rounded, exact);
    }
}
