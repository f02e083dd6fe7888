//! Shapes that do not fit each other are refused before anything is read.

use std::sync::Arc;

use burn::tensor::{DType, Tensor};
use tooltune_kernels::dense::{Dense, InputTransform as DenseReading, dense};
use tooltune_kernels::layer_norm::layer_norm;
use tooltune_kernels::lora_linear::{
    AdapterLayout, AdapterPart, InputTransform, LinearExtras, StackedAdapter, StackedLinear,
    lora_linear,
};
use tooltune_kernels::rms_norm::rms_norm;
use tooltune_kernels::rope::rope;
use tooltune_kernels::{ComputeDtype, FrozenWeight, RopeTable};

use crate::support::{leaf, refusal, test_device};

fn ones<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::ones(shape, &test_device())
}

#[test]
fn a_layer_norm_of_other_columns_is_refused() {
    for (weight, bias) in [(4, 2), (2, 4), (4, 8), (8, 4), (1, 4), (4, 1), (2, 2)] {
        for track in [Tensor::clone, leaf] {
            let (weight, bias) = (track(&ones([weight])), track(&ones([bias])));
            for rows in [1, 2] {
                let x = ones([rows, 4]);
                let message = refusal(|| layer_norm(x, &weight, &bias, 1e-5));
                assert!(message.contains("need 4 weights and biases"), "{message}");
            }
        }
    }
}

#[test]
fn an_rms_norm_of_other_columns_is_refused() {
    for columns in [8, 2, 1, 3] {
        for output in [DType::F32, DType::BF16] {
            let message = refusal(|| rms_norm(ones([2, 4]), &ones([columns]), 1e-5, output));
            assert!(message.contains("need 4 weights"), "{message}");
        }
    }
}

#[test]
fn heads_that_cannot_be_halved_or_have_other_tables_are_refused() {
    let table = |tokens: usize, half: usize| {
        let positions = vec![1; tokens];
        RopeTable::new(&positions, &vec![0.5; half], 1.0, &test_device())
    };
    for (shape, tokens, half, said) in [
        ([2, 3, 5], 2, 2, "cannot be halved"),
        ([2, 3, 1], 2, 0, "cannot be halved"),
        ([2, 3, 4], 1, 2, "need tables of [2, 1, 2]"),
        ([2, 3, 4], 3, 2, "need tables of [2, 1, 2]"),
        ([2, 3, 4], 2, 4, "need tables of [2, 1, 2]"),
    ] {
        for turned in [0, 2] {
            let message = refusal(|| rope(ones(shape), &table(tokens, half), turned));
            assert!(message.contains(said), "{shape:?}: {message}");
        }
    }
    let message = refusal(|| rope(ones([2, 3, 4]), &table(2, 2), 4));
    assert!(message.contains("4 heads of 3"), "{message}");
    let mut mixed = table(2, 2);
    mixed.sin = table(1, 2).sin;
    let message = refusal(|| rope(ones([2, 3, 4]), &mixed, 2));
    assert!(message.contains("need tables of [2, 1, 2]"), "{message}");
}

/// Maps of 6 and 2 outputs from 4 inputs, which [`lora_linear`] takes, in one of the types.
fn maps(dtype: ComputeDtype) -> StackedLinear {
    let part = AdapterPart {
        rank: 2,
        scaling: 1.0,
    };
    let layout = AdapterLayout::new(4, &[6, 2], &[Some(part), None]);
    StackedLinear {
        weight: FrozenWeight::new(vec![0.5; 8 * 4], [8, 4], dtype, &test_device()),
        bias: Some(ones([8])),
        out_features: [6, 2].into(),
        adapter: Some(StackedAdapter::new(ones([layout.len()]), Arc::new(layout))),
    }
}

#[test]
fn maps_of_other_shapes_are_refused() {
    for dtype in [ComputeDtype::F32, ComputeDtype::Bf16] {
        let x = |columns: usize| ones([3, columns]).cast(dtype.dtype());
        let good = lora_linear(x(4), &maps(dtype), LinearExtras::default());
        assert_eq!(good.dims(), [3, 8]);
        let refused = |columns: usize, linear: StackedLinear, extras: LinearExtras, said: &str| {
            let message = refusal(|| lora_linear(x(columns), &linear, extras));
            assert!(message.contains(said), "{message}");
        };
        for columns in [2, 3, 8, 16] {
            let said = "columns of x";
            refused(columns, maps(dtype), LinearExtras::default(), said);
        }
        for columns in [4, 9, 16] {
            let extras = LinearExtras {
                transform: InputTransform::Gated,
                ..LinearExtras::default()
            };
            refused(columns, maps(dtype), extras, "columns of x");
        }
        for out_features in [&[6][..], &[6, 1], &[6, 2, 1], &[4, 8]] {
            let linear = StackedLinear {
                out_features: out_features.into(),
                ..maps(dtype)
            };
            refused(4, linear, LinearExtras::default(), "outputs of the maps");
        }
        let linear = StackedLinear {
            bias: Some(ones([12])),
            ..maps(dtype)
        };
        refused(4, linear, LinearExtras::default(), "a bias for each output");
        let layout = AdapterLayout::new(3, &[6, 2], &[None, None]);
        let adapter = StackedAdapter::new(ones([layout.len()]), Arc::new(layout));
        let linear = StackedLinear {
            adapter: Some(adapter),
            ..maps(dtype)
        };
        refused(4, linear, LinearExtras::default(), "of adapters");
        let extras = LinearExtras {
            residual: Some(ones([8, 3])),
            ..LinearExtras::default()
        };
        refused(4, maps(dtype), extras, "the shape of the residual");
        let extras = LinearExtras {
            dropout: vec![None],
            ..LinearExtras::default()
        };
        refused(4, maps(dtype), extras, "1 dropouts for 2 maps");
        let transform = |columns: usize| InputTransform::Normed {
            weight: Box::new(ones([columns])),
            eps: 1e-5,
        };
        for columns in [1, 2, 8] {
            let message = refusal(|| {
                let extras = LinearExtras {
                    transform: transform(columns),
                    ..LinearExtras::default()
                };
                lora_linear(ones([3, 4]), &maps(dtype), extras)
            });
            assert!(message.contains("weights of the norm"), "{message}");
        }
        let map = Dense::new(ones([8, 4]), ones([8]), dtype);
        let message = refusal(|| dense(x(4), &map, Some(ones([8, 3])), DenseReading::Plain));
        assert!(message.contains("the shape of the residual"), "{message}");
    }
}
