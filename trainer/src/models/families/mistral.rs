//! Defines the network of Mistral.

use tooltune_checkpoints::families as files;

use super::{ATTENTION_BIAS, BEFORE, Bias, Biases, Family, Gate, HeadNorms, SEPARATE};

/// The network of Mistral.
///
/// # Source
///
/// `modeling_mistral.py` of transformers 5.23.
pub(super) const FAMILY: Family = Family {
    files: &files::MISTRAL,
    projections: &SEPARATE,
    biases: Biases {
        qkv: ATTENTION_BIAS,
        output: Bias::Never,
    },
    norms: BEFORE,
    head_norms: HeadNorms::None,
    gate: Gate::Silu,
    query_gate: false,
};
