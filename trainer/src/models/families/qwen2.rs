//! Defines the network of Qwen2 and Qwen2.5.

use tooltune_checkpoints::families as files;

use super::{Bias, Biases, Family, llama};

/// The network of Qwen2.
///
/// # Source
///
/// `modeling_qwen2.py` of transformers 5.23.
pub(super) const FAMILY: Family = Family {
    files: &files::QWEN2,
    biases: Biases {
        qkv: Bias::Always,
        output: Bias::Never,
    },
    ..llama::FAMILY
};
