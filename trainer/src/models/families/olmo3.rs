//! Defines the network of Olmo 3.

use tooltune_checkpoints::families as files;

use super::{BlockNorms, BranchNorms, Family, HeadNorms, llama};

/// Olmo 3, with norms on branch outputs, one norm over all queries of a token, and one over all its
/// keys.
///
/// # Source
///
/// `modeling_olmo3.py` of transformers 5.23.
pub(super) const FAMILY: Family = Family {
    files: &files::OLMO3,
    norms: BlockNorms {
        attention: BranchNorms {
            before: None,
            after: Some("post_attention_layernorm"),
        },
        feed_forward: BranchNorms {
            before: None,
            after: Some("post_feedforward_layernorm"),
        },
        offset: 0.0,
    },
    head_norms: HeadNorms::Together,
    ..llama::FAMILY
};
