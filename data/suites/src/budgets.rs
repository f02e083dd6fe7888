//! Limits of input.
//!
//! The comment of each constant gives its reason; docs/limits.md tells users what exceeds it and
//! what to do.

/// Maximum number of steps for comparing two texts by ROUGE-L; a step handles 64 pairs of words.
/// Two texts of 100,000 words each fit; a model's answer has a few thousand words.
pub const ROUGE_STEPS: u64 = 400_000_000;

/// Maximum number of leaves of a completion that differ from the gold value and are compared by
/// similarity, because each vector needs 1.5 KB. SLOT's gold values have a few dozen leaves.
pub const COMPARED_LEAVES: usize = 100_000;

/// Maximum number of pairs of a predicted and a gold call that `score` compares per sample: 2,000
/// calls with 2,000.
pub const CALL_PAIRS: usize = 4_000_000;
