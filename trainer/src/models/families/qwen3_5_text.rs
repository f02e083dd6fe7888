//! Defines the network of Qwen3.5's dense language models.

use tooltune_checkpoints::families as files;

use super::{ATTENTION_BIAS, BEFORE, Biases, BlockNorms, Family, Gate, HeadNorms, SEPARATE};

/// Qwen3.5: blocks of linear attention, and blocks of attention with an output gate.
///
/// # Source
///
/// `modeling_qwen3_5.py` of transformers 5.23.
pub(super) const FAMILY: Family = Family {
    files: &files::QWEN3_5_TEXT,
    projections: &SEPARATE,
    biases: Biases {
        qkv: ATTENTION_BIAS,
        output: ATTENTION_BIAS,
    },
    norms: BlockNorms {
        offset: 1.0,
        ..BEFORE
    },
    head_norms: HeadNorms::Each,
    gate: Gate::Silu,
    query_gate: true,
};
