//! Limits of input.
//!
//! The comment of each constant gives its reason. docs/limits.md tells users which input exceeds a
//! limit, and what to do.

/// Maximum number of steps for comparing two texts by ROUGE-L. A step processes 64 pairs of words.
/// Two texts of 100,000 words each are within the limit; a model's answer has a few thousand words.
pub const ROUGE_STEPS: u64 = 400_000_000;

/// Maximum number of leaves of a completion that differ from the gold value. They are compared by
/// similarity, which needs a vector of 1.5 KB for each. SLOT's gold values have a few dozen leaves.
pub const COMPARED_LEAVES: usize = 100_000;

/// Maximum number of pairs of a predicted and a gold call that `score` compares per sample. The
/// limit is reached by 2,000 predicted and 2,000 gold calls.
pub const CALL_PAIRS: usize = 4_000_000;
