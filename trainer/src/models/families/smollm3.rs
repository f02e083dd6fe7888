//! Defines the network of SmolLM3.

use tooltune_checkpoints::families as files;

use super::{Family, llama};

/// SmolLM3: Llama with some blocks without rotary embedding.
///
/// # Source
///
/// `modeling_smollm3.py` of transformers 5.23.
pub(super) const FAMILY: Family = Family {
    files: &files::SMOLLM3,
    ..llama::FAMILY
};
