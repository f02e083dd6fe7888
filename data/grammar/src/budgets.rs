//! Limits of grammar compilation.
//!
//! Each constant documents its reason. docs/limits.md tells users which input exceeds a limit, and
//! what to do.

/// Maximum pairs of `patternProperties` patterns that are compared as automata. Each comparison
/// takes at most a millisecond. Patterns with different literal prefixes need no comparison.
pub const PATTERN_PAIRS: usize = 2_000;

/// Maximum pairs of `oneOf` alternatives that are compared. 1,000 alternatives have this many
/// pairs.
pub const ALTERNATIVE_PAIRS: usize = 500_000;

/// Maximum remainders for a `multipleOf` step. Each remainder is a state of an automaton that is
/// evaluated for all tokens of the vocabulary.
pub const STEP_REMAINDERS: u32 = 5_000;
