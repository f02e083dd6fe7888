//! Defines the network of Ministral 3.

use tooltune_checkpoints::families as files;

use super::{BEFORE, Bias, Biases, Family, Gate, HeadNorms, SEPARATE};

/// Ministral 3, which scales queries at far positions.
///
/// # Source
///
/// `modeling_ministral3.py` of transformers 5.23.
pub(super) const FAMILY: Family = Family {
    files: &files::MINISTRAL3,
    projections: &SEPARATE,
    biases: Biases {
        qkv: Bias::Never,
        output: Bias::Never,
    },
    norms: BEFORE,
    head_norms: HeadNorms::None,
    gate: Gate::Silu,
    query_gate: false,
};
