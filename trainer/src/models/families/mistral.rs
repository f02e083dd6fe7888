//! Defines the network of Mistral.

use tooltune_checkpoints::families as files;

use super::{ATTENTION_BIAS, Bias, Biases, Family, llama};

/// The network of Mistral.
///
/// # Source
///
/// `modeling_mistral.py` of transformers 5.23.
pub(super) const FAMILY: Family = Family {
    files: &files::MISTRAL,
    biases: Biases {
        qkv: ATTENTION_BIAS,
        output: Bias::Never,
    },
    ..llama::FAMILY
};
