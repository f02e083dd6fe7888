//! The loss of a micro-batch and the gradient of its hidden states.

use burn::tensor::Tensor;
use tooltune_kernels::Supervision;
use tooltune_kernels::linear_cross_entropy::{
    linear_cross_entropy, linear_cross_entropy_loss, reference,
};

use crate::bounds::Quantity;
use crate::support::{Numbers, assert_near, gradient, leaf, on_threads, test_device, values};

fn supervision(numbers: &mut Numbers, rows: usize, vocab: usize) -> Supervision {
    let targets: Vec<u32> = (0..rows).map(|_| numbers.below(vocab) as u32).collect();
    let weights: Vec<f32> = (0..rows).map(|i| 0.25 + (i % 3) as f32).collect();
    Supervision::new(&targets, &weights)
}

/// Loss and gradient by autodiff through all logits.
fn expected(hidden: &Tensor<2>, head: &Tensor<2>, by: &Supervision) -> (f64, Vec<f32>) {
    let hidden = leaf(hidden);
    let loss = reference::linear_cross_entropy(hidden.clone(), head, by);
    let value = f64::from(loss.clone().into_scalar::<f32>());
    (value, gradient(&hidden, &loss.mul_scalar(0.125).backward()))
}

#[test]
fn loss_and_gradient_agree_with_autodiff_through_all_logits() {
    let mut numbers = Numbers::new(21);
    for [rows, vocab, d] in [
        [1, 1, 1],
        [1, 50, 7],
        [5, 3000, 16],
        [40, 2049, 33],
        [129, 1024, 64],
    ] {
        let hidden = numbers.tensor([rows, d]).mul_scalar(3.0);
        let head = numbers.tensor([vocab, d]);
        let by = supervision(&mut numbers, rows, vocab);
        let (loss, gradient) = expected(&hidden, &head, &by);
        for chunk_rows in [1, 7, 128, 1000] {
            let ours = linear_cross_entropy(hidden.clone(), &head, &by, 0.125, chunk_rows);
            let name = format!("{rows} rows, {vocab} tokens, chunks of {chunk_rows}");
            let off = (ours.loss_sum - loss).abs();
            assert!(
                off <= Quantity::Operation.bound() * loss.abs().max(1e-3),
                "{name}: {off}"
            );
            if vocab > 1 {
                assert_near(&name, &values(&ours.d_hidden), &gradient);
            }
            let alone = linear_cross_entropy_loss(hidden.clone(), &head, &by, chunk_rows);
            assert_eq!(alone, ours.loss_sum, "{name}");
        }
    }
}

#[test]
fn logits_far_apart_neither_overflow_nor_vanish() {
    let mut numbers = Numbers::new(22);
    let hidden = numbers.tensor([6, 8]).mul_scalar(300.0);
    let head = numbers.tensor([1500, 8]).mul_scalar(2.0);
    let by = supervision(&mut numbers, 6, 1500);
    let (loss, gradient) = expected(&hidden, &head, &by);
    let ours = linear_cross_entropy(hidden, &head, &by, 0.125, 4);
    assert!(
        (ours.loss_sum - loss).abs() < Quantity::Operation.bound() * loss,
        "{} {loss}",
        ours.loss_sum
    );
    assert_near("gradient", &values(&ours.d_hidden), &gradient);
}

#[test]
fn nan_in_a_row_shows_in_the_loss_and_in_that_row_alone() {
    let mut numbers = Numbers::new(23);
    let mut floats = numbers.floats(4 * 8);
    floats[8] = f32::NAN;
    let data = burn::tensor::TensorData::new(floats, [4, 8]);
    let hidden = Tensor::<2>::from_data(data, &test_device());
    let head = numbers.tensor([90, 8]);
    let by = supervision(&mut numbers, 4, 90);
    let ours = linear_cross_entropy(hidden, &head, &by, 0.125, 128);
    assert!(ours.loss_sum.is_nan());
    for (i, row) in values(&ours.d_hidden).chunks(8).enumerate() {
        assert_eq!(row.iter().all(|v| v.is_nan()), i == 1, "row {i}");
        assert_eq!(row.iter().all(|v| v.is_finite()), i != 1, "row {i}");
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let mut numbers = Numbers::new(24);
    let hidden = numbers.tensor([60, 40]);
    let head = numbers.tensor([5000, 40]);
    let by = supervision(&mut numbers, 60, 5000);
    let run = |threads| {
        let (hidden, head, by) = (hidden.clone(), head.clone(), by.clone());
        on_threads(threads, move || {
            let ours = linear_cross_entropy(hidden, &head, &by, 0.125, 32);
            (ours.loss_sum, values(&ours.d_hidden))
        })
    };
    assert!(run(1) == run(2));
}
