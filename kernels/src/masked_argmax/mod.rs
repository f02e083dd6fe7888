//! The most likely token of each row among those that a mask allows, found where the logits lie.

#[cfg(all(feature = "cube", not(feature = "fusion")))]
pub(crate) mod cuda;
pub mod reference;

use burn::tensor::Tensor;

/// The token with the largest logit of each row whose bit is set in the row's mask, the first of several;
/// 0 where no allowed logit is a number above -3e38.
///
/// # Shapes
///
/// - `logits`: `[b, v]`, f32 or bf16
/// - `masks`: words of each row, of which bit `i % 32` of word `i / 32` allows token `i`; missing words
///   allow nothing, `None` allows all
/// - returns: `b` tokens
///
/// The kernel is a GPU's; other tensors go to the reference.
///
/// # Panics
///
/// If there is not a mask for each row, or one with more words than logits.
pub fn masked_argmax(logits: Tensor<2>, masks: &[Option<&[u32]>]) -> Vec<u32> {
    let [rows, width] = logits.dims();
    let n_words = width.div_ceil(32);
    assert!(
        masks.len() == rows && masks.iter().flatten().all(|mask| mask.len() <= n_words),
        "masked_argmax: {rows} rows of {width} logits need as many masks of at most {n_words} words"
    );
    crate::operation!("masked_argmax");
    #[cfg(all(feature = "cube", not(feature = "fusion")))]
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

/// The words of all rows, one row behind the other.
#[cfg(all(feature = "cube", not(feature = "fusion")))]
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
