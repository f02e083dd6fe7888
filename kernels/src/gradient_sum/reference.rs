//! The exact sum with integers of 128 bits, one element after the other.

use burn::tensor::{Tensor, TensorData};

use super::{FRACTION_BITS, LIMIT};

/// Same contract as [`GradientSum`](super::GradientSum) for all `parts` of a step, each `[p]`.
///
/// # Panics
///
/// If there are no parts, or their lengths differ.
pub fn sum(parts: &[Tensor<1>]) -> Tensor<1> {
    let first = parts.first().expect("a step has parts");
    if parts.len() == 1 {
        return first.clone();
    }
    let log_parts = (parts.len() as f64).log2().ceil() as i32;
    let scale = 2.0_f64.powi(FRACTION_BITS - log_parts);
    let parts: Vec<Vec<f32>> = parts
        .iter()
        .map(|part| part.to_data().iter::<f32>().collect())
        .collect();
    let is_far = |x: &f32| x.is_nan() || x.abs() >= LIMIT;
    if parts.iter().flatten().any(is_far) {
        let values = vec![f32::NAN; parts[0].len()];
        return Tensor::from_data(TensorData::new(values, first.dims()), &first.device());
    }
    let values: Vec<f32> = (0..parts[0].len())
        .map(|i| {
            let integers = parts.iter().map(|part| {
                let scaled = f64::from(part[i]) * scale;
                scaled.round_ties_even() as i128
            });
            // The scale is a power of 2, so only the conversion to f32 rounds.
            (integers.sum::<i128>() as f32) * (scale.recip() as f32)
        })
        .collect();
    Tensor::from_data(TensorData::new(values, first.dims()), &first.device())
}
