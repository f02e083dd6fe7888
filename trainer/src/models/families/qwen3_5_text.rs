//! Defines the network of Qwen3.5's dense language models.

use tooltune_checkpoints::families as files;

use super::{BEFORE, BlockNorms, Family, HeadNorms, llama};

/// Qwen3.5: blocks of linear attention, and blocks of attention with an output gate.
///
/// # Source
///
/// `modeling_qwen3_5.py` of transformers 5.23.
pub(super) const FAMILY: Family = Family {
    files: &files::QWEN3_5_TEXT,
    norms: BlockNorms {
        offset: 1.0,
        ..BEFORE
    },
    head_norms: HeadNorms::Each,
    query_gate: true,
    ..llama::FAMILY
};
