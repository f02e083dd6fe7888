//! Shapes that do not fit each other are refused before anything is read.

use burn::tensor::{DType, Tensor};
use tooltune_kernels::RopeTable;
use tooltune_kernels::layer_norm::layer_norm;
use tooltune_kernels::rms_norm::rms_norm;
use tooltune_kernels::rope::rope;

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
        ([2, 3, 4], 2, 1, "need tables of [2, 1, 2]"),
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
