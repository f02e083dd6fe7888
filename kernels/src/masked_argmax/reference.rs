//! The most likely allowed token in plain tensor operations.

use burn::tensor::{Bool, Tensor, TensorData};

/// Lower than every selectable logit.
const LOWEST: f32 = -3e38;

/// Same contract as [`super::masked_argmax`].
pub fn masked_argmax(logits: Tensor<2>, masks: &[Option<&[u32]>]) -> Vec<u32> {
    let [rows, width] = logits.dims();
    if rows * width == 0 {
        return vec![0; rows];
    }
    let is_absent = |mask: &Option<&[u32]>, token: usize| {
        mask.is_some_and(|words| words.get(token / 32).unwrap_or(&0) >> (token % 32) & 1 == 0)
    };
    let absent = masks
        .iter()
        .flat_map(|mask| (0..width).map(move |token| is_absent(mask, token)));
    let absent = TensorData::new(absent.collect::<Vec<bool>>(), [rows, width]);
    let absent = Tensor::<2, Bool>::from_data(absent, &logits.device());
    // A comparison with NaN is false.
    let absent = absent.bool_or(logits.clone().is_nan());
    let logits = logits.mask_fill(absent, LOWEST);
    let best = logits.clone().argmax(1);
    let largest = logits.gather(1, best.clone()).into_data();
    let best = best.into_data();
    let both = best.iter::<i64>().zip(largest.iter::<f32>());
    both.map(|(token, logit)| if logit > LOWEST { token as u32 } else { 0 })
        .collect()
}
