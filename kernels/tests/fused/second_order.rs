//! Gradients have no graph: a second backward pass is refused instead of giving zeros.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{DType, Tensor};
use tooltune_kernels::attention::{Causality, Documents, attention};
use tooltune_kernels::dense::{Reading, dense};
use tooltune_kernels::layer_norm::layer_norm;
use tooltune_kernels::rms_norm::rms_norm;
use tooltune_kernels::rope::rope;
use tooltune_kernels::swiglu::swiglu;
use tooltune_kernels::{ComputeDtype, Dense, RopeTable};

use crate::support::{Numbers, leaf};

fn check<const D: usize, const E: usize>(x: &Tensor<D>, f: &dyn Fn(Tensor<D>) -> Tensor<E>) {
    let x = leaf(x);
    let gradient = x.grad(&f(x.clone()).sum().backward()).expect("a leaf");
    assert!(!gradient.is_tracked());
    let refused = catch_unwind(AssertUnwindSafe(|| gradient.sum().backward()));
    let message = refused.err().expect("a refusal");
    let message = message.downcast_ref::<&str>().expect("a text");
    assert!(
        message.contains("requires a tracked autodiff tensor"),
        "{message}"
    );
}

#[test]
fn a_gradient_of_a_gradient_is_refused_by_every_operation() {
    let mut numbers = Numbers::new(71);
    let matrix = numbers.tensor([3, 8]);
    let heads = numbers.tensor([3, 4, 8]);
    let (weight, bias) = (numbers.tensor([8]), numbers.tensor([3]));
    let table = RopeTable::new(&[0, 1, 2], &[0.1; 4], 1.0, &heads.device());
    check(&matrix, &|x| rms_norm(x, &weight, 1e-5, DType::F32));
    check(&matrix, &swiglu);
    check(&matrix, &|x| {
        let map = Dense::new(leaf(&matrix), leaf(&bias), ComputeDtype::F32);
        dense(x, &map, None, Reading::Gelu)
    });
    check(&matrix, &|x| {
        layer_norm(x, &leaf(&weight), &leaf(&weight), 1e-5)
    });
    check(&heads, &|x| rope(x, &table, 3));
    check(&heads, &|x| {
        attention(x, 2, &Documents::single(3), Causality::Causal)
    });
}
