//! Defines the network of Gemma 3's language models.

use tooltune_checkpoints::families as files;

use super::{BlockNorms, BranchNorms, Family, Gate, HeadNorms, llama};

/// Gemma 3, with norms on the inputs and outputs of branches.
///
/// # Source
///
/// `modeling_gemma3.py` of transformers 5.23.
pub(super) const FAMILY: Family = Family {
    files: &files::GEMMA3_TEXT,
    norms: BlockNorms {
        attention: BranchNorms {
            before: Some("input_layernorm"),
            after: Some("post_attention_layernorm"),
        },
        feed_forward: BranchNorms {
            before: Some("pre_feedforward_layernorm"),
            after: Some("post_feedforward_layernorm"),
        },
        offset: 1.0,
    },
    head_norms: HeadNorms::Each,
    gate: Gate::GeluTanh,
    ..llama::FAMILY
};
