//! Exact sums of gradients on the CPU.

use burn::tensor::Tensor;
use tooltune_kernels::gradient_sum::GradientSum;

use crate::backend::gradient_sum as backend;
use crate::support::{Numbers, refusal, under_test, values};

/// Invariant: The sum of a step's gradients has the same bits for every order of the micro-batches
/// and every distribution over processes.
#[test]
fn a_sum_has_the_same_bits_for_every_order_and_distribution() {
    backend::sums(&under_test(), &[1, 7, 1000, 100_003]);
}

#[test]
fn a_value_out_of_range_makes_the_sum_nan() {
    backend::values_out_of_range(&under_test());
}

#[test]
fn the_sum_is_closer_to_the_exact_sum_than_sums_of_floats() {
    let mut numbers = Numbers::new(92);
    let parts: Vec<Tensor<1>> = (0..64)
        .map(|i| {
            numbers
                .cpu_tensor([5000])
                .mul_scalar(10.0_f64.powi(-2 - i % 5))
        })
        .collect();
    let exact: Vec<f64> = (0..5000)
        .map(|i| parts.iter().map(|part| f64::from(values(part)[i])).sum())
        .collect();
    let error = |sum: &Tensor<1>| {
        let values = values(sum);
        let off = values.iter().zip(&exact);
        off.map(|(a, b)| (f64::from(*a) - b).powi(2))
            .sum::<f64>()
            .sqrt()
    };
    let mut sum = GradientSum::new(5000, parts.len());
    parts.iter().for_each(|part| sum.add(part.clone()));
    let ours = sum.finish::<()>(&parts[0], None).expect("no other process");
    let floats = parts.iter().cloned().reduce(Tensor::add).expect("parts");
    assert!(error(&ours) < 0.5 * error(&floats));
}

#[test]
fn a_part_of_another_length_is_rejected() {
    let mut numbers = Numbers::new(93);
    let mut sum = GradientSum::new(5, 2);
    let message = refusal(|| sum.add(numbers.cpu_tensor([4])));
    assert!(message.contains("values of a part"), "{message}");
}
