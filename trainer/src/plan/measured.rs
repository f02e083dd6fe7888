//! The constants of the memory model, measured on this program.
//!
//! How they were measured: x86-64 Linux with glibc, two threads, one thing changed at a time. VmRSS
//! before and after the weights are read and VmHWM after a step, all three from
//! `tooltune plan --probe --format json`; VmHWM of `tooltune train` over three steps for what the
//! update and the save take; VmHWM of `tooltune eval` for generation. Models: SmolLM2-135M with 235
//! to 6,625 tokens in a micro-batch, and random ones of 12 blocks that differ in one width. The
//! block constants are the least squares of all of them; no model is off by more than 10 % of its
//! activations. A kernel that keeps more or less changes the second table: measure again then.

/// Bytes of a value: everything is computed in f32.
pub(super) const F32: f64 = 4.0;

/// What a process holds before it knows of a model: code, threads, the heap's first pages.
pub(super) const PROGRAM_BYTES: f64 = 17e6;

/// Bytes of a tokenizer for each entry of its vocabulary: text, merges, two maps.
pub(super) const TOKENIZER_BYTES_PER_ENTRY: f64 = 310.0;

/// Bytes of an example for each token: id and weight, in vectors that grew by doubling, and its
/// share of the row's id.
pub(super) const EXAMPLE_BYTES_PER_TOKEN: f64 = 18.0;

/// Largest buffer that the heap keeps instead of giving it back: glibc's mmap threshold at its
/// upper end. Reading a weight that is not stored in f32 takes such a buffer.
pub(super) const KEPT_BUFFER_BYTES: f64 = 33_554_432.0;

/// Copies of the adapter's values that live through a run: parameters and two moments.
pub(super) const ADAPTER_COPIES: f64 = 3.0;

/// Copies of the adapter's values that an update makes for a moment, the gradient included.
pub(super) const UPDATE_COPIES: f64 = 3.5;

/// Copies of the adapter's values that a save makes for a moment.
pub(super) const SAVE_COPIES: f64 = 7.0;

/// Copies of a chunk's logits while it becomes a loss and a gradient.
pub(super) const LOGITS_COPIES: f64 = 1.2;

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
}

/// A block that is differentiated: what its graph keeps, and gradients on their way.
pub(super) const TRAINING: BlockConstants = BlockConstants {
    hidden: 2.6,
    queries: 6.2,
    key_values: 1.0,
    intermediate: 4.6,
    dropped: 1.15,
};

/// A block that only computes its output.
pub(super) const FORWARD: BlockConstants = BlockConstants {
    hidden: 1.0,
    queries: 2.0,
    key_values: 2.0,
    intermediate: 2.3,
    dropped: 0.0,
};
