//! Defines the network of Qwen2 and Qwen2.5.

use tooltune_checkpoints::families as files;

use super::{BEFORE, Bias, Biases, Family, Gate, HeadNorms, SEPARATE};

/// The network of Qwen2.
///
/// # Source
///
/// `modeling_qwen2.py` of transformers 5.23.
pub(super) const FAMILY: Family = Family {
    files: &files::QWEN2,
    projections: &SEPARATE,
    biases: Biases {
        qkv: Bias::Always,
        output: Bias::Never,
    },
    norms: BEFORE,
    head_norms: HeadNorms::None,
    gate: Gate::Silu,
    query_gate: false,
};
