//! Attention over packed documents: value and gradients of queries, keys and values.

use burn::tensor::{DType, Tensor};
use tooltune_kernels::attention::{Causality, Documents, Queries, attention, reference};

use crate::backend::attention::{self as backend, BOTH, Case};
use crate::bounds::Quantity;
use crate::support::{
    BOTH_TYPES, Numbers, assert_near_in, difference, gradient, gradients, leaf, on_threads,
    under_test, values,
};

#[test]
fn grouped_heads_match_the_reference() {
    backend::grouped_heads(
        &under_test(),
        &[
            [1, 1, 2],
            [9, 3, 64],
            [32, 8, 16],
            [14, 2, 64],
            [12, 12, 32],
            [4, 1, 20],
            [2, 1, 5],
            [2, 2, 128],
        ],
    );
}

/// Invariant: A token attends only to its window within its document.
#[test]
fn windows_match_the_reference() {
    let mut numbers = Numbers::new(48);
    // Key blocks have 128 rows, query blocks 48, tasks 512.
    for window in [1, 2, 47, 48, 49, 127, 128, 129, 130, 300, 5000] {
        for (borders, n) in [
            (vec![0, 50], 50),
            (vec![0, 31, 32, 33, 197, 650], 660),
            (vec![0, 1100], 1100),
        ] {
            let causality = Causality::Sliding(window);
            let case = Case::new(&mut numbers, [4, 2, 8], (&borders, n), causality);
            case.check(&under_test(), &format!("window {window}, {borders:?}"));
        }
    }
}

#[test]
fn another_score_scale_matches_scaled_queries() {
    let mut numbers = Numbers::new(49);
    let queries = Queries {
        heads: 4,
        scale: Some(0.25),
    };
    let (n, documents) = (70, Documents::new(&[0, 20, 70], 70));
    let qkv = numbers.tensor([n, 8, 4]);
    let dy = numbers.tensor([n, 4, 4]);
    // Head size 4: the default multiplier is one half.
    let halved = |qkv: Tensor<3>| {
        let q = qkv.clone().narrow(1, 0, 4).mul_scalar(0.5);
        attention(
            Tensor::cat(vec![q, qkv.narrow(1, 4, 4)], 1),
            4,
            &documents,
            Causality::Causal,
        )
    };
    let run = |attend: &dyn Fn(Tensor<3>) -> Tensor<3>| {
        let x = leaf(&qkv);
        let y = attend(x.clone());
        let grads = gradients(y.clone(), &dy);
        [values(&y.inner()), gradient(&x, &grads)]
    };
    let ours = run(&|x| attention(x, queries, &documents, Causality::Causal));
    let expected = run(&halved);
    let plain = run(&|x| reference::attention(x, queries, &documents, Causality::Causal));
    for i in 0..2 {
        assert_near_in(DType::F32, "a scale", &ours[i], &expected[i]);
        assert_near_in(DType::F32, "a scale, reference", &plain[i], &expected[i]);
    }
}

#[test]
fn documents_of_any_length_match_the_reference() {
    let lengths: Vec<usize> = (0..40).map(|i| i * (i + 1) / 2).collect();
    let n = lengths[39];
    backend::documents(
        &under_test(),
        [6, 2, 16],
        &[
            (vec![0, 1], 1),
            (vec![0, 48], 48),
            (vec![0, 49], 49),
            (vec![0, 31, 32, 33, 97], 97),
            (vec![0, 0, 5, 5, 12, 12], 20),
            (vec![0, 127, 255], 256),
            (vec![0, 300], 300),
            (lengths, n),
        ],
    );
}

#[test]
fn a_document_split_into_tasks_matches_the_reference() {
    let mut numbers = Numbers::new(47);
    for causality in BOTH {
        let case = Case::new(&mut numbers, [2, 1, 8], (&[0, 1100, 1130], 1135), causality);
        case.check(&under_test(), &format!("{causality:?}"));
    }
}

#[test]
fn scores_far_apart_neither_overflow_nor_vanish() {
    let mut numbers = Numbers::new(43);
    let mut case = Case::new(&mut numbers, [2, 1, 8], (&[0, 270], 270), Causality::Causal);
    let queries = case.qkv.clone().narrow(1, 0, 2).mul_scalar(100.0);
    case.qkv = Tensor::cat(vec![queries, case.qkv.clone().narrow(1, 2, 2)], 1);
    let ours = case.ours(&under_test(), DType::F32);
    let expected = case.expected(DType::F32);
    for (ours, expected) in ours.iter().zip(&expected) {
        let off = difference(ours, expected);
        assert!(off < Quantity::SteepAttention.bound(), "{off}");
    }
}

#[test]
fn padding_tokens_give_zeros_and_get_no_gradient() {
    let mut numbers = Numbers::new(46);
    for (borders, n, real) in [(vec![0], 3, 0), (vec![0, 4], 7, 4)] {
        let case = Case::new(&mut numbers, [4, 2, 8], (&borders, n), Causality::Causal);
        for dtype in BOTH_TYPES {
            let [y, _, dq, dk, dv] = case.ours(&under_test(), dtype);
            for (values, width) in [(y, 4), (dq, 4), (dk, 2), (dv, 2)] {
                assert!(values[real * width * 8..].iter().all(|v| *v == 0.0));
                assert!(real == 0 || values[..real * width * 8].iter().any(|v| *v != 0.0));
            }
        }
    }
}

#[test]
fn nan_stays_in_its_document() {
    let mut numbers = Numbers::new(44);
    let borders = [0, 70, 140, 150];
    let case = Case::new(&mut numbers, [2, 1, 8], (&borders, 150), Causality::Causal);
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        // The last token of the second document: a query, its key, its value.
        for head in [1, 2, 3] {
            for dtype in BOTH_TYPES {
                let token = [139..140, head..head + 1, 3..4];
                let qkv = case.qkv.clone().slice_fill(token, poison);
                let x = leaf(&under_test().place(&qkv).cast(dtype));
                let y = attention(x.clone(), 2, &case.documents, case.causality);
                let y_values = values(&y.clone().inner());
                let dx = gradient(&x, &gradients(y, &under_test().place(&case.dy).cast(dtype)));
                let bad = |values: &[f32]| values.iter().any(|v| !v.is_finite());
                assert!(!bad(&y_values[..70 * 16]) && !bad(&y_values[140 * 16..]));
                assert!(
                    bad(&y_values[139 * 16..140 * 16]),
                    "{poison} {head} {dtype:?}"
                );
                assert!(!bad(&dx[..70 * 32]) && !bad(&dx[140 * 32..]));
                assert!(bad(&dx[70 * 32..140 * 32]));
            }
        }
    }
}

/// Invariant: The number of threads does not change a bit of a result.
#[test]
fn results_are_bit_identical_for_any_number_of_threads() {
    let mut numbers = Numbers::new(45);
    let borders = [0, 90, 100, 733];
    let case = Case::new(&mut numbers, [6, 2, 32], (&borders, 740), Causality::Causal);
    for dtype in BOTH_TYPES {
        let run = |threads| on_threads(threads, || case.ours(&under_test(), dtype));
        assert!(run(1) == run(2));
    }
}

#[test]
fn stale_working_memory_does_not_change_results() {
    let mut numbers = Numbers::new(47);
    // A single thread, which reuses its working memory.
    on_threads(1, || {
        for n in [1, 2, 11, 13, 25, 49, 60, 127, 131, 200] {
            for causality in BOTH {
                for dtype in BOTH_TYPES {
                    let case = Case::new(&mut numbers, [3, 1, 64], (&[0, n], n), causality);
                    let first = case.ours(&under_test(), dtype);
                    let mut spoilt =
                        Case::new(&mut numbers, [3, 1, 64], (&[0, 300], 300), causality);
                    spoilt.qkv = spoilt.qkv.mul_scalar(f32::NAN);
                    let spoilt = spoilt.ours(&under_test(), dtype);
                    assert!(spoilt[0].iter().all(|value| value.is_nan()));
                    assert!(
                        case.ours(&under_test(), dtype) == first,
                        "{n} {causality:?} {dtype:?}"
                    );
                    assert!(first.iter().flatten().all(|value| value.is_finite()));
                }
            }
        }
    });
}
