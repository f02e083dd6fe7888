//! Gradients are not part of an autodiff graph: a second backward pass is an error and does not
//! return zeros.

use std::sync::Arc;

use burn::tensor::{DType, Tensor};
use tooltune_kernels::attention::{Causality, Documents, attention};
use tooltune_kernels::dense::{InputTransform, dense};
use tooltune_kernels::layer_norm::layer_norm;
use tooltune_kernels::linear_cross_entropy::distilled::distilled_cross_entropy;
use tooltune_kernels::linear_cross_entropy::linear_cross_entropy;
use tooltune_kernels::lora_linear::{LinearExtras, lora_linear};
use tooltune_kernels::rms_norm::rms_norm;
use tooltune_kernels::rope::rope;
use tooltune_kernels::swiglu::swiglu;
use tooltune_kernels::{
    AdapterLayout, AdapterPart, ComputeDtype, Dense, Distillation, FrozenWeight, RopeTable,
    StackedAdapter, StackedLinear, Supervision,
};

use crate::support::{Numbers, leaf, refusal, test_device};

fn check<const D: usize, const E: usize>(x: &Tensor<D>, f: &dyn Fn(Tensor<D>) -> Tensor<E>) {
    let x = leaf(x);
    let gradient = x.grad(&f(x.clone()).sum().backward()).expect("a leaf");
    assert_refused(gradient);
}

fn assert_refused<const D: usize>(gradient: Tensor<D>) {
    assert!(!gradient.is_tracked());
    let message = refusal(|| gradient.sum().backward());
    assert!(
        message.contains("requires a tracked autodiff tensor"),
        "{message}"
    );
}

/// Invariant: Second-order gradients are refused.
#[test]
fn every_operation_rejects_second_order_gradients() {
    let mut numbers = Numbers::new(71);
    let matrix = numbers.tensor([3, 8]);
    let heads = numbers.tensor([3, 4, 8]);
    let (weight, bias) = (numbers.tensor([8]), numbers.tensor([3]));
    let table = RopeTable::new(&[0, 1, 2], &[0.1; 4], 1.0, &heads.device());
    check(&matrix, &|x| rms_norm(x, &weight, 1e-5, DType::F32));
    check(&matrix, &swiglu);
    check(&matrix, &|x| {
        let layer = Dense::new(leaf(&matrix), leaf(&bias), ComputeDtype::F32);
        dense(x, &layer, None, InputTransform::Gelu)
    });
    check(&matrix, &|x| {
        layer_norm(x, &leaf(&weight), &leaf(&weight), 1e-5)
    });
    check(&heads, &|x| rope(x, &table, 3));
    check(&heads, &|x| {
        attention(x, 2, &Documents::single(3), Causality::Causal)
    });
}

/// Invariant: Second-order gradients are refused.
#[test]
fn adapted_layers_reject_second_order_gradients() {
    let mut numbers = Numbers::new(72);
    let parts = [4, 2].map(|rank| Some(AdapterPart { rank, scaling: 1.5 }));
    let layout = Arc::new(AdapterLayout::new(8, &[5, 3], &parts));
    let (x, factors) = (numbers.tensor([3, 8]), numbers.tensor([layout.len()]));
    let weight = numbers.floats(8 * 8);
    let layer = |x: Tensor<2>, factors: Tensor<1>| {
        let linear = StackedLinear {
            weight: FrozenWeight::new(weight.clone(), [8, 8], ComputeDtype::F32, &test_device()),
            bias: None,
            out_features: [5, 3].into(),
            adapter: Some(StackedAdapter::new(factors, layout.clone())),
        };
        lora_linear(x, &linear, LinearExtras::default())
    };
    check(&x, &|x| layer(x, leaf(&factors)));
    check(&factors, &|factors| layer(leaf(&x), factors));
}

/// Invariant: Second-order gradients are refused.
#[test]
fn the_returned_loss_gradient_rejects_second_order() {
    let mut numbers = Numbers::new(73);
    let [student, teacher] = [0, 1].map(|_| numbers.tensor([3, 8]));
    let weight = numbers.floats(20 * 8);
    let head = FrozenWeight::new(weight, [20, 8], ComputeDtype::F32, &test_device());
    let supervision = Supervision::new(&[4, 0, 19], &[1.0; 3]);
    let ours = linear_cross_entropy(student.clone(), &head, &supervision, 0.5, 2);
    assert_refused(ours.d_hidden);
    let how = Distillation {
        alpha: 0.5,
        temperature: 2.0,
    };
    let ours = distilled_cross_entropy([student, teacher], &head, &supervision, how, 0.5, 2);
    assert_refused(ours.d_hidden);
}
