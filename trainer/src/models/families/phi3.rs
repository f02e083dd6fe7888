//! Defines the network of Phi-3 and Phi-4.

use tooltune_checkpoints::families as files;

use super::{Bias, Biases, FUSED, Family, llama};

/// Phi-3, with fused projections.
///
/// # Source
///
/// `modeling_phi3.py` of transformers 5.23.
pub(super) const FAMILY: Family = Family {
    files: &files::PHI3,
    projections: &FUSED,
    biases: Biases {
        qkv: Bias::Never,
        output: Bias::Never,
    },
    ..llama::FAMILY
};
