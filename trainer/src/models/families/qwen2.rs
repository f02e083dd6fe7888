//! Defines the network of Qwen2 and Qwen2.5.

use tooltune_checkpoints::families as files;

use super::{Bias, Biases, Family, rotated};

/// Qwen2.
///
/// # Source
///
/// `modeling_qwen2.py` of transformers 5.23.
pub(super) const QWEN2: Family = Family {
    files: &files::QWEN2,
    biases: Biases {
        qkv: Bias::Always,
        output: Bias::Never,
    },
    head_norms: &[],
    attention_input: rotated,
};
