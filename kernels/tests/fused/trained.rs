//! Fully trained encoder operations: linear layers and layer norms, values and all gradients.

use burn::tensor::{DType, Tensor, TensorData};
use tooltune_kernels::dense::{self, Dense, InputTransform, dense};
use tooltune_kernels::layer_norm::{self, layer_norm};
use tooltune_kernels::{ComputeDtype, Documents};

use crate::support::{
    Numbers, assert_near, assert_near_in, gradient, gradients, leaf, on_threads, test_device,
    values,
};

/// Tokens, inputs, outputs: ones, odd numbers, MiniLM's sizes, and more tokens than are summed at a
/// time.
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
            // A layer reads the f32 residual stream, or the output of another layer of its dtype.
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
            let layer = Dense::new(weight.clone(), bias.clone(), self.dtype);
            dense(x.clone(), &layer, residual.clone(), self.transform)
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
        let grads = gradients(y, &self.dy);
        let dx = x.grad(&grads).expect("a leaf");
        assert_eq!(dx.dtype(), self.x.dtype());
        results.push(values(&dx));
        results.push(gradient(&weight, &grads));
        results.push(gradient(&bias, &grads));
        results.extend(residual.map(|residual| gradient(&residual, &grads)));
        results
    }
}

#[test]
fn a_trained_layer_matches_the_reference() {
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
fn a_layer_without_autodiff_gives_equal_values() {
    let mut numbers = Numbers::new(82);
    for dtype in BOTH {
        let case = Case::new(
            &mut numbers,
            [37, 96, 130],
            (dtype, InputTransform::Plain, true),
        );
        let layer = Dense::new(case.weight.clone(), case.bias.clone(), dtype);
        let plain = dense(
            case.x.clone(),
            &layer,
            case.residual.clone(),
            case.transform,
        );
        assert_eq!(values(&plain), case.run(true)[0]);
    }
}

#[test]
fn weight_gradients_do_not_depend_on_the_number_of_threads() {
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
fn nan_and_infinity_reach_every_dependent_gradient() {
    let device = test_device();
    for dtype in BOTH {
        let mut x = vec![1.0f32; 3 * 64];
        x[70] = f32::NAN;
        let x =
            leaf(&Tensor::<2>::from_data(TensorData::new(x, [3, 64]), &device).cast(dtype.dtype()));
        let weight = leaf(&Tensor::<2>::ones([40, 64], &device));
        let bias = leaf(&Tensor::<1>::zeros([40], &device));
        let layer = Dense::new(weight.clone(), bias.clone(), dtype);
        let y = dense(x.clone(), &layer, None, InputTransform::Gelu);
        let value = values(&y.clone().inner());
        assert!(value[..40].iter().all(|v| v.is_finite()));
        assert!(value[40..80].iter().all(|v| v.is_nan()));
        assert!(value[80..].iter().all(|v| v.is_finite()));
        let dy = Tensor::<2>::ones([3, 40], &device).cast(dtype.dtype());
        let grads = gradients(y, &dy);
        let dx = gradient(&x, &grads);
        assert_eq!(dx.iter().filter(|v| v.is_nan()).count(), 1);
        let d_weight = gradient(&weight, &grads);
        assert_eq!(d_weight.iter().filter(|v| v.is_nan()).count(), 40);
        assert!(gradient(&bias, &grads).iter().all(|v| *v == 3.0));
    }
}

/// For weights far from 0 the backward pass starts from the output; with a weight of 0, from the
/// input.
pub(crate) fn weight_for(far_from_zero: bool, weight: Tensor<1>) -> Tensor<1> {
    if far_from_zero {
        return weight.abs().add_scalar(0.5);
    }
    let other_rows = weight.clone().narrow(0, 1, weight.dims()[0] - 1);
    Tensor::cat(vec![weight.narrow(0, 0, 1).zeros_like(), other_rows], 0)
}

#[test]
fn layer_norm_matches_the_reference() {
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
            let grads = gradients(y, &dy);
            [
                value,
                gradient(&x, &grads),
                gradient(&w, &grads),
                gradient(&b, &grads),
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
fn layer_norm_does_not_depend_on_threads_and_keeps_nan() {
    let mut numbers = Numbers::new(85);
    let (x, dy) = (numbers.tensor([1000, 48]), numbers.tensor([1000, 48]));
    let (weight, bias) = (numbers.tensor([48]), numbers.tensor([48]));
    let run = |weight: &Tensor<1>| {
        let (x, w, b) = (leaf(&x), leaf(weight), leaf(&bias));
        let grads = gradients(layer_norm(x.clone(), &w, &b, 1e-5), &dy);
        [
            gradient(&x, &grads),
            gradient(&w, &grads),
            gradient(&b, &grads),
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
fn an_encoder_block_learns_through_attention_in_both_dtypes() {
    // Dtypes as in a block: an f32 residual stream, projections and attention in the layer's dtype.
    use tooltune_kernels::attention::{Causality, attention};
    let mut numbers = Numbers::new(86);
    let x = numbers.tensor([9, 32]);
    let (weight, bias) = (numbers.tensor([96, 32]), numbers.tensor([96]));
    let documents = Documents::new(&[0, 4, 9], 9);
    let run = |dtype: ComputeDtype| {
        let (x, w) = (leaf(&x), leaf(&weight));
        let layer = Dense::new(w.clone(), leaf(&bias), dtype);
        let qkv = dense(x.clone(), &layer, None, InputTransform::Plain).reshape([9, 12, 8]);
        let y = attention(qkv, 4, &documents, Causality::Bidirectional);
        assert_eq!(y.dtype(), dtype.dtype());
        let grads = y.cast(DType::F32).sum().backward();
        [gradient(&x, &grads), gradient(&w, &grads)]
    };
    let (exact, rounded) = (run(ComputeDtype::F32), run(ComputeDtype::Bf16));
    for (exact, rounded) in exact.iter().zip(&rounded) {
        assert_near_in(DType::BF16, "bf16 against f32", rounded, exact);
    }
}
