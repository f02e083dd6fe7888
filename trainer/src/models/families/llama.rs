//! Defines the network of Llama 2 and 3 and of SmolLM2.

use tooltune_checkpoints::families as files;

use super::{ATTENTION_BIAS, BEFORE, Biases, Family, Gate, HeadNorms, SEPARATE};

/// The network of Llama.
///
/// # Source
///
/// `modeling_llama.py` of transformers 5.23.
pub(super) const FAMILY: Family = Family {
    files: &files::LLAMA,
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
