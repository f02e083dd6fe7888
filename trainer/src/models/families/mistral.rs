//! Defines the network of Mistral.

use tooltune_checkpoints::families as files;

use super::{Bias, Biases, Family, rotated};

/// Mistral.
///
/// # Source
///
/// `modeling_mistral.py` of transformers 5.23.
pub(super) const MISTRAL: Family = Family {
    files: &files::MISTRAL,
    biases: Biases {
        qkv: Bias::AttentionBias,
        output: Bias::Never,
    },
    head_norms: &[],
    attention_input: rotated,
};
