//! Defines the network of Ministral 3.

use tooltune_checkpoints::families as files;

use super::{Bias, Biases, Family, llama};

/// Ministral 3, which scales queries at far positions.
///
/// # Source
///
/// `modeling_ministral3.py` of transformers 5.23.
pub(super) const FAMILY: Family = Family {
    files: &files::MINISTRAL3,
    biases: Biases {
        qkv: Bias::Never,
        output: Bias::Never,
    },
    ..llama::FAMILY
};
