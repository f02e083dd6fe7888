//! Mismatched shapes are rejected before anything is read.

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
fn layer_norm_rejects_a_different_width() {
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
fn rms_norm_rejects_a_different_width() {
    for columns in [8, 2, 1, 3] {
        for output in [DType::F32, DType::BF16] {
            let message = refusal(|| rms_norm(ones([2, 4]), &ones([columns]), 1e-5, output));
            assert!(message.contains("need 4 weights"), "{message}");
        }
    }
}

#[test]
fn rope_rejects_odd_heads_and_mismatched_tables() {
    let table = |tokens: usize, half: usize| {
        let positions = vec![1; tokens];
        RopeTable::new(&positions, &vec![0.5; half], 1.0, &test_device())
    };
    for (shape, tokens, half, expected) in [
        ([2, 3, 5], 2, 2, "cannot be halved"),
        ([2, 3, 1], 2, 0, "cannot be halved"),
        ([2, 3, 4], 1, 2, "need tables of [2, 1, 2]"),
        ([2, 3, 4], 3, 2, "need tables of [2, 1, 2]"),
        ([2, 3, 4], 2, 4, "need tables of [2, 1, 2]"),
    ] {
        for rotated_heads in [0, 2] {
            let message = refusal(|| rope(ones(shape), &table(tokens, half), rotated_heads));
            assert!(message.contains(expected), "{shape:?}: {message}");
        }
    }
    let message = refusal(|| rope(ones([2, 3, 4]), &table(2, 2), 4));
    assert!(message.contains("cannot rotate 4 of 3 heads"), "{message}");
    let mut mixed = table(2, 2);
    mixed.sin = table(1, 2).sin;
    let message = refusal(|| rope(ones([2, 3, 4]), &mixed, 2));
    assert!(message.contains("need tables of [2, 1, 2]"), "{message}");
}

/// Layers of 6 and 2 outputs from 4 inputs, valid for [`lora_linear`], in one of the dtypes.
fn layers(dtype: ComputeDtype) -> StackedLinear {
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
fn layers_with_mismatched_shapes_are_rejected() {
    for dtype in [ComputeDtype::F32, ComputeDtype::Bf16] {
        let x = |columns: usize| ones([3, columns]).cast(dtype.dtype());
        let good = lora_linear(x(4), &layers(dtype), LinearExtras::default());
        assert_eq!(good.dims(), [3, 8]);
        let refused =
            |columns: usize, linear: StackedLinear, extras: LinearExtras, expected: &str| {
                let message = refusal(|| lora_linear(x(columns), &linear, extras));
                assert!(message.contains(expected), "{message}");
            };
        for columns in [2, 3, 8, 16] {
            let expected = "columns of x";
            refused(columns, layers(dtype), LinearExtras::default(), expected);
        }
        for columns in [4, 9, 16] {
            let extras = LinearExtras {
                transform: InputTransform::Gated,
                ..LinearExtras::default()
            };
            refused(columns, layers(dtype), extras, "columns of x");
        }
        for out_features in [&[6][..], &[6, 1], &[6, 2, 1], &[4, 8]] {
            let linear = StackedLinear {
                out_features: out_features.into(),
                ..layers(dtype)
            };
            refused(4, linear, LinearExtras::default(), "outputs of the layers");
        }
        let linear = StackedLinear {
            bias: Some(ones([12])),
            ..layers(dtype)
        };
        refused(
            4,
            linear,
            LinearExtras::default(),
            "the bias needs one element per output",
        );
        let layout = AdapterLayout::new(3, &[6, 2], &[None, None]);
        let adapter = StackedAdapter::new(ones([layout.len()]), Arc::new(layout));
        let linear = StackedLinear {
            adapter: Some(adapter),
            ..layers(dtype)
        };
        refused(4, linear, LinearExtras::default(), "of adapters");
        let extras = LinearExtras {
            residual: Some(ones([8, 3])),
            ..LinearExtras::default()
        };
        refused(4, layers(dtype), extras, "the shape of the residual");
        let extras = LinearExtras {
            dropout: vec![None],
            ..LinearExtras::default()
        };
        refused(4, layers(dtype), extras, "1 dropouts for 2 layers");
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
                lora_linear(ones([3, 4]), &layers(dtype), extras)
            });
            assert!(
                message.contains("the norm needs one weight per input"),
                "{message}"
            );
        }
        let layer = Dense::new(ones([8, 4]), ones([8]), dtype);
        let message = refusal(|| dense(x(4), &layer, Some(ones([8, 3])), DenseReading::Plain));
        assert!(
            message.contains("the residual must have the shape of the output"),
            "{message}"
        );
    }
}
