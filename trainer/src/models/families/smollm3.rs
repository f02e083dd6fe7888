//! Defines the network of SmolLM3.

use tooltune_checkpoints::families as files;

use super::{ATTENTION_BIAS, BEFORE, Biases, Family, Gate, HeadNorms, SEPARATE};

/// SmolLM3: Llama with some blocks without rotary embedding.
///
/// # Source
///
/// `modeling_smollm3.py` of transformers 5.23.
pub(super) const FAMILY: Family = Family {
    files: &files::SMOLLM3,
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
