//! Limits of input.
//!
//! Each constant gives its reason here; docs/limits.md tells users what exceeds it and what to do.

/// Steps of a comparison of two texts by ROUGE-L, each of 64 pairs of words. Two texts of 100,000
/// words each fit; a model's answer has some thousands.
pub const ROUGE_STEPS: u64 = 400_000_000;

/// Leaves of a completion that differ from the gold value's and are compared by their likeness: their
/// vectors take 1.5 KB each. SLOT's golds have some dozens.
pub const COMPARED_LEAVES: usize = 100_000;

/// Pairs of a predicted and a gold call of one sample that `score` compares: 2,000 calls with 2,000.
pub const CALL_PAIRS: usize = 4_000_000;
