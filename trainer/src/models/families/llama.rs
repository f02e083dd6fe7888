//! Defines the network of Llama 2 and 3 and of SmolLM2.

use tooltune_checkpoints::families as files;

use super::{Bias, Biases, Family, rotated};

/// Llama.
///
/// # Source
///
/// `modeling_llama.py` of transformers 5.23.
pub(super) const LLAMA: Family = Family {
    files: &files::LLAMA,
    biases: Biases {
        qkv: Bias::AttentionBias,
        output: Bias::AttentionBias,
    },
    head_norms: &[],
    attention_input: rotated,
};
