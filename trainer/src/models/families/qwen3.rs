//! Defines the network of Qwen3's dense models.

use tooltune_checkpoints::families as files;

use super::{Family, HeadNorms, llama};

/// Qwen3, which normalizes each query head and each key head.
///
/// # Source
///
/// `modeling_qwen3.py` of transformers 5.23.
pub(super) const FAMILY: Family = Family {
    files: &files::QWEN3,
    head_norms: HeadNorms::Each,
    ..llama::FAMILY
};
