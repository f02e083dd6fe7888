//! Defines the network of Seed-OSS.

use tooltune_checkpoints::families as files;

use super::{ATTENTION_BIAS, Bias, Biases, Family, llama};

/// The network of Seed-OSS.
///
/// # Source
///
/// `modeling_seed_oss.py` of transformers 5.23.
pub(super) const FAMILY: Family = Family {
    files: &files::SEED_OSS,
    biases: Biases {
        qkv: ATTENTION_BIAS,
        output: Bias::Flag("attention_out_bias"),
    },
    ..llama::FAMILY
};
