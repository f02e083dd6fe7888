//! The loss of a micro-batch and the gradient of its hidden states.

use burn::tensor::{DType, Tensor};
use tooltune_kernels::linear_cross_entropy::{
    linear_cross_entropy, linear_cross_entropy_loss, logits, reference,
};
use tooltune_kernels::{ComputeDtype, FrozenWeight, Supervision};

use crate::bounds::Quantity;
use crate::support::{
    Numbers, assert_near, assert_near_in, gradient, leaf, on_threads, test_device, values,
};

fn supervision(numbers: &mut Numbers, rows: usize, vocab: usize) -> Supervision {
    let targets: Vec<u32> = (0..rows).map(|_| numbers.below(vocab) as u32).collect();
    let weights: Vec<f32> = (0..rows).map(|i| 0.25 + (i % 3) as f32).collect();
    Supervision::new(&targets, &weights)
}

fn head(weight: &Tensor<2>, dtype: ComputeDtype) -> FrozenWeight {
    FrozenWeight::new(values(weight), weight.dims(), dtype, &test_device())
}

/// Loss and gradient by autodiff through all logits.
fn expected(hidden: &Tensor<2>, head: &Tensor<2>, supervision: &Supervision) -> (f64, Vec<f32>) {
    let hidden = leaf(hidden);
    let loss = reference::linear_cross_entropy(hidden.clone(), head, supervision);
    let value = f64::from(loss.clone().into_scalar::<f32>());
    (value, gradient(&hidden, &loss.mul_scalar(0.125).backward()))
}

fn assert_agreement(dtype: ComputeDtype) {
    let mut numbers = Numbers::new(21);
    for [rows, vocab, d] in [
        [1, 1, 1],
        [1, 50, 7],
        [5, 3000, 16],
        [40, 2049, 33],
        [129, 1024, 64],
    ] {
        let hidden = numbers.tensor([rows, d]).mul_scalar(3.0);
        compare(&mut numbers, &hidden, vocab, dtype, &[1, 7, 128, 1000]);
    }
}

/// Compares loss and gradient with the reference, in chunks of this many rows.
pub(crate) fn compare(
    numbers: &mut Numbers,
    hidden: &Tensor<2>,
    vocab: usize,
    dtype: ComputeDtype,
    chunks: &[usize],
) {
    let tolerance = Quantity::Operation.bound_in(dtype.dtype());
    let [rows, d] = hidden.dims();
    let hidden = hidden.clone().cast(dtype.dtype());
    let head = head(&numbers.tensor([vocab, d]), dtype);
    let supervised = supervision(numbers, rows, vocab);
    let wide = hidden.clone().cast(DType::F32);
    let (loss, gradient) = expected(&wide, &head.to_tensor(), &supervised);
    for &chunk_rows in chunks {
        let ours = linear_cross_entropy(hidden.clone(), &head, &supervised, 0.125, chunk_rows);
        let name = format!("{rows} rows, {vocab} tokens, chunks of {chunk_rows}, {dtype:?}");
        let off = (ours.loss_sum - loss).abs();
        assert!(off <= tolerance * loss.abs().max(1e-3), "{name}: {off}");
        assert_eq!(ours.d_hidden.dtype(), dtype.dtype());
        if vocab > 1 {
            assert_near_in(dtype.dtype(), &name, &values(&ours.d_hidden), &gradient);
        }
        let alone = linear_cross_entropy_loss(hidden.clone(), &head, &supervised, chunk_rows);
        assert_eq!(alone, ours.loss_sum, "{name}");
    }
}

#[test]
fn loss_and_gradient_match_autodiff_through_all_logits() {
    assert_agreement(ComputeDtype::F32);
}

#[test]
fn bf16_loss_and_gradient_match_autodiff_through_all_logits() {
    assert_agreement(ComputeDtype::Bf16);
}

#[test]
fn logits_are_the_product_with_the_head() {
    let mut numbers = Numbers::new(25);
    for dtype in [ComputeDtype::F32, ComputeDtype::Bf16] {
        for rows in [1, 16, 70] {
            let hidden = numbers.tensor([rows, 48]).cast(dtype.dtype());
            let head = head(&numbers.tensor([1500, 48]), dtype);
            let expected = hidden
                .clone()
                .cast(DType::F32)
                .matmul(head.to_tensor().transpose());
            assert_near(
                "logits",
                &values(&logits(hidden, &head)),
                &values(&expected),
            );
        }
    }
}

#[test]
fn logits_far_apart_neither_overflow_nor_vanish() {
    let mut numbers = Numbers::new(22);
    let hidden = numbers.tensor([6, 8]).mul_scalar(300.0);
    let head = numbers.tensor([1500, 8]).mul_scalar(2.0);
    let supervised = supervision(&mut numbers, 6, 1500);
    let (loss, gradient) = expected(&hidden, &head, &supervised);
    let head = self::head(&head, ComputeDtype::F32);
    let ours = linear_cross_entropy(hidden, &head, &supervised, 0.125, 4);
    assert!(
        (ours.loss_sum - loss).abs() < Quantity::Operation.bound() * loss,
        "{} {loss}",
        ours.loss_sum
    );
    assert_near("gradient", &values(&ours.d_hidden), &gradient);
}

#[test]
fn subnormal_probabilities_change_neither_loss_nor_gradient() {
    let mut numbers = Numbers::new(29);
    let hidden = numbers.tensor([6, 16]).mul_scalar(25.0);
    let head = head(&numbers.tensor([700, 16]), ComputeDtype::F32);
    let supervised = supervision(&mut numbers, 6, 700);
    let all = values(&logits(hidden.clone(), &head));
    let exponents = all.chunks(700).flat_map(|row| {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.iter().map(move |logit| logit - most)
    });
    let vanishing = exponents.filter(|x| (-104.0..-87.4).contains(x)).count();
    assert!(vanishing > 100, "{vanishing} subnormal exponentials");
    let (loss, gradient) = expected(&hidden, &head.to_tensor(), &supervised);
    let ours = linear_cross_entropy(hidden, &head, &supervised, 0.125, 4);
    let off = (ours.loss_sum - loss).abs();
    assert!(off <= Quantity::Operation.bound() * loss, "{loss}");
    assert_near("gradient", &values(&ours.d_hidden), &gradient);
}

#[test]
fn nan_shows_in_the_loss_and_only_in_its_row() {
    let mut numbers = Numbers::new(23);
    let mut floats = numbers.floats(4 * 8);
    floats[8] = f32::NAN;
    let data = burn::tensor::TensorData::new(floats, [4, 8]);
    let hidden = Tensor::<2>::from_data(data, &test_device());
    let weight = numbers.tensor([90, 8]);
    let supervised = supervision(&mut numbers, 4, 90);
    for dtype in [ComputeDtype::F32, ComputeDtype::Bf16] {
        let hidden = hidden.clone().cast(dtype.dtype());
        let ours = linear_cross_entropy(hidden, &head(&weight, dtype), &supervised, 0.125, 128);
        assert!(ours.loss_sum.is_nan());
        for (i, row) in values(&ours.d_hidden).chunks(8).enumerate() {
            assert_eq!(row.iter().all(|v| v.is_nan()), i == 1, "row {i}, {dtype:?}");
            assert_eq!(
                row.iter().all(|v| v.is_finite()),
                i != 1,
                "row {i}, {dtype:?}"
            );
        }
    }
}

#[test]
fn infinity_shows_in_the_loss_and_only_in_its_row() {
    let mut numbers = Numbers::new(26);
    let weight = numbers.tensor([700, 8]);
    let supervised = supervision(&mut numbers, 4, 700);
    // A head of one sign gives the same infinity for all logits of the row.
    for weight in [weight.clone(), weight.abs().add_scalar(0.1)] {
        for bad in [f32::INFINITY, f32::NEG_INFINITY] {
            let mut floats = numbers.floats(4 * 8);
            floats[2 * 8 + 3] = bad;
            let data = burn::tensor::TensorData::new(floats, [4, 8]);
            let hidden = Tensor::<2>::from_data(data, &test_device());
            for dtype in [ComputeDtype::F32, ComputeDtype::Bf16] {
                let (hidden, head) = (hidden.clone().cast(dtype.dtype()), head(&weight, dtype));
                let ours = linear_cross_entropy(hidden.clone(), &head, &supervised, 0.125, 3);
                let name = format!("{bad}, {dtype:?}");
                assert!(!ours.loss_sum.is_finite(), "{name}");
                let alone = linear_cross_entropy_loss(hidden, &head, &supervised, 3);
                assert!(!alone.is_finite(), "{name}");
                for (i, row) in values(&ours.d_hidden).chunks(8).enumerate() {
                    let is_finite = row.iter().all(|v| v.is_finite());
                    assert_eq!(is_finite, i != 2, "row {i}, {name}");
                }
            }
        }
    }
}

/// Invariant: The number of threads does not change a bit of a result.
#[test]
fn results_are_bit_identical_for_any_number_of_threads() {
    let mut numbers = Numbers::new(24);
    let hidden = numbers.tensor([60, 40]);
    let weight = numbers.tensor([5000, 40]);
    let supervised = supervision(&mut numbers, 60, 5000);
    for dtype in [ComputeDtype::F32, ComputeDtype::Bf16] {
        let head = head(&weight, dtype);
        let run = |threads| {
            let (hidden, head, supervised) =
                (hidden.clone().cast(dtype.dtype()), &head, &supervised);
            on_threads(threads, move || {
                let ours = linear_cross_entropy(hidden, head, supervised, 0.125, 32);
                (ours.loss_sum, values(&ours.d_hidden))
            })
        };
        assert!(run(1) == run(2), "{dtype:?}");
    }
}
