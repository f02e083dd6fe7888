//! The constants of the memory model, measured on this program.
//!
//! How they were measured: `tooltune plan --probe` on x86-64 Linux with glibc, two threads, with
//! SmolLM2-135M and one term changed at a time (tokens of the micro-batch, dropout, documents per
//! batch, supervised rows); VmRSS before the weights and with them, VmHWM after the step. After a
//! change of a kernel, run the probes of `docs/memory.md` again: the measured peak must stay within
//! 20 % of the predicted one.

/// Bytes of a value: everything is computed in f32.
pub(super) const F32: f64 = 4.0;

/// What a process holds before it knows of a model: code, threads, the heap's first pages.
pub(super) const PROGRAM_BYTES: f64 = 14e6;

/// Bytes of the tokenizer for each entry of its vocabulary: text, merges, two maps.
pub(super) const TOKENIZER_BYTES_PER_ENTRY: f64 = 900.0;

/// Bytes of an example for each token: id and weight, in vectors that grew by doubling.
pub(super) const EXAMPLE_BYTES_PER_TOKEN: f64 = 12.0;

/// Copies of the adapter's values that live through a run: parameters, the factors that the
/// projections hold, two moments.
pub(super) const ADAPTER_COPIES: f64 = 4.0;

/// Copies of the adapter's values that an update makes for a moment.
pub(super) const UPDATE_COPIES: f64 = 8.0;

/// Copies of a chunk's logits while it becomes a loss and a gradient.
pub(super) const LOGITS_COPIES: f64 = 4.0;

/// Values alive at once for each token of a block, as multiples of the widths.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockConstants {
    /// Of the hidden size.
    pub hidden: f64,
    /// Of all query heads together.
    pub queries: f64,
    /// Of all key/value heads together.
    pub key_values: f64,
    /// Of the feed-forward width.
    pub intermediate: f64,
    /// Of the inputs of adapted projections, where there is dropout.
    pub dropped: f64,
    /// Of the attention scores: query heads times the squared length of each document.
    pub scores: f64,
    /// Of the attention scores of the longest document alone, while its turn lasts.
    pub scores_of_longest: f64,
}

/// A block that is differentiated: what its graph keeps, and gradients on their way.
pub(super) const TRAINING: BlockConstants = BlockConstants {
    hidden: 10.0,
    queries: 4.0,
    key_values: 4.0,
    intermediate: 7.0,
    dropped: 2.0,
    scores: 3.0,
    scores_of_longest: 3.0,
};

/// A block that only computes its output.
pub(super) const FORWARD: BlockConstants = BlockConstants {
    hidden: 4.0,
    queries: 3.0,
    key_values: 3.0,
    intermediate: 4.0,
    dropped: 0.0,
    scores: 0.0,
    scores_of_longest: 3.0,
};
