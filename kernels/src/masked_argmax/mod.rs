//! The most likely allowed token of each row, computed on the device of the logits.

#[cfg(feature = "cube")]
pub(crate) mod cuda;
pub mod reference;

use burn::tensor::Tensor;

/// For each row, the token with the largest logit whose bit is set in the row's mask; the first one
/// on ties, and 0 if no allowed logit is above -3e38.
///
/// # Shapes
///
/// - `logits`: `[b, v]`, f32 or bf16
/// - `masks`: words of each row; bit `i % 32` of word `i / 32` allows token `i`. Missing words
///   allow nothing, `None` allows all tokens
/// - returns: `b` tokens
///
/// Only GPUs have a kernel; other tensors use the reference.
///
/// # Panics
///
/// If the number of masks differs from the number of rows, or a mask has more words than the logits
/// need.
pub fn masked_argmax(logits: Tensor<2>, masks: &[Option<&[u32]>]) -> Vec<u32> {
    let [rows, width] = logits.dims();
    let n_words = width.div_ceil(32);
    assert!(
        masks.len() == rows && masks.iter().flatten().all(|mask| mask.len() <= n_words),
        "masked_argmax: {rows} rows of {width} logits need one mask per row, of at most {n_words} words"
    );
    crate::operation!("masked_argmax");
    #[cfg(feature = "cube")]
    if crate::route::is_served_by_gpu(&logits)
        && let Ok(logits) = logits
            .clone()
            .try_into_primitive::<burn_cubecl::CubeBackend>()
    {
        let is_masked = masks.iter().any(Option::is_some);
        let words = is_masked.then(|| words(masks, n_words));
        return cuda::masked_argmax(logits, words.as_deref());
    }
    reference::masked_argmax(logits, masks)
}

/// The concatenated words of all rows.
#[cfg(feature = "cube")]
fn words(masks: &[Option<&[u32]>], n_words: usize) -> Vec<u32> {
    let mut words = Vec::with_capacity(masks.len() * n_words);
    for (row, mask) in masks.iter().enumerate() {
        match mask {
            Some(mask) => words.extend_from_slice(mask),
            None => words.resize(words.len() + n_words, u32::MAX),
        }
        words.resize((row + 1) * n_words, 0);
    }
    words
}
