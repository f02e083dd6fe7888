//! Defines the network of Granite's dense models.

use tooltune_checkpoints::families as files;

use super::{ATTENTION_BIAS, BEFORE, Biases, Family, Gate, HeadNorms, SEPARATE};

/// Granite: Llama with multipliers.
///
/// # Source
///
/// `modeling_granite.py` of transformers 5.23.
pub(super) const FAMILY: Family = Family {
    files: &files::GRANITE,
    projections: &SEPARATE,
    biases: Biases {
        qkv: ATTENTION_BIAS,
        output: ATTENTION_BIAS,
    },
    norms: BEFORE,
    head_norms: HeadNorms::None,
    gate: Gate::Silu,
    query_gate: false,
};
