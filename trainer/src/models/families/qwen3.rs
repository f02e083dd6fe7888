//! Defines the network of Qwen3's dense models.

use tooltune_checkpoints::families as files;

use super::{ATTENTION_BIAS, BEFORE, Biases, Family, Gate, HeadNorms, SEPARATE};

/// Qwen3, which normalizes each query head and each key head.
///
/// # Source
///
/// `modeling_qwen3.py` of transformers 5.23.
pub(super) const FAMILY: Family = Family {
    files: &files::QWEN3,
    projections: &SEPARATE,
    biases: Biases {
        qkv: ATTENTION_BIAS,
        output: ATTENTION_BIAS,
    },
    norms: BEFORE,
    head_norms: HeadNorms::Each,
    gate: Gate::Silu,
    query_gate: false,
};
