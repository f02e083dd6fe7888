//! Defines the network of Granite's dense models.

use tooltune_checkpoints::families as files;

use super::{Family, llama};

/// Granite: Llama with multipliers.
///
/// # Source
///
/// `modeling_granite.py` of transformers 5.23.
pub(super) const FAMILY: Family = Family {
    files: &files::GRANITE,
    ..llama::FAMILY
};
