//! The constants of the memory model, measured on this program.
//!
//! How they were measured: x86-64 Linux with glibc, two threads, one thing changed at a time. VmRSS
//! before and after the weights are read and VmHWM after a step, all three from
//! `tooltune plan --probe --format json`; VmHWM of `tooltune train` over three steps for what the
//! update, the save and evaluations take, of language models and of retrievers. The block constants
//! are counted, tensor by tensor, from what the operations keep and return, and held against
//! measurements by a test. A kernel that keeps more or less changes them: count again then.

use crate::recipes::kept_blocks::BlockWidths;

/// What a process holds before it knows of a model: code, threads, the heap's first pages.
pub(super) const PROGRAM_BYTES: f64 = 32e6;

/// The same where a retriever learns alone, without the code of language models.
pub(super) const RETRIEVER_PROGRAM_BYTES: f64 = 17e6;

/// Bytes of a tokenizer for each entry of its vocabulary: text, merges, two maps.
pub(super) const TOKENIZER_BYTES_PER_ENTRY: f64 = 310.0;

/// Bytes of an example for each token: id and weight, in vectors that grew by doubling, and its
/// share of the row's id.
pub(super) const EXAMPLE_BYTES_PER_TOKEN: f64 = 18.0;

/// What a run holds after its first evaluation, beside what products of f32 do: working memory of each
/// thread, compiled templates, and the ends of the heap.
pub(super) const EVALUATION_BYTES: f64 = 40e6;

/// What it holds more where products read f32, measured where bf16 has no instructions: working memory
/// of products and what the pool keeps between generation and reading texts.
pub(super) const F32_EVALUATION_BYTES: f64 = 50e6;

/// Copies of the adapter's values that live through a run: parameters and two moments.
pub(super) const ADAPTER_COPIES: f64 = 3.0;

/// Copies of the factors as products read them, one for each direction, in the type of products.
pub(super) const PACKED_COPIES: f64 = 2.0;

/// Copies of the trained values that an update makes for a moment beside the pages of the step, which
/// stay for the next one: the clipped gradient. Gradient and new values find place in those pages.
pub(super) const UPDATE_COPIES: f64 = 1.0;

/// Copies of weights that are trained as a whole, beside that: their gradients before they are joined
/// with the others', and what is added to them; afterwards the new weights on their way to the model.
pub(super) const WHOLE_WEIGHT_COPIES: f64 = 2.0;

/// Copies of the trained values that a save makes for a moment: the values, once as they lie and once
/// by name, and two moments.
pub(super) const SAVE_COPIES: f64 = 4.1;

/// What a save copies more of factors that are saved with twice the rank.
pub(super) const DOUBLED_COPIES: f64 = 2.0;

/// Copies of a chunk's exponentials, in the type of products, while it becomes a loss and a gradient:
/// one, and a few columns of logits and of gradients for each thread.
pub(super) const LOGITS_COPIES: f64 = 1.1;

/// The same of a head that is trained, in f32 and in plain operations: logits, their logarithms,
/// probabilities and gradients.
pub(super) const TRAINED_LOGITS_COPIES: f64 = 4.0;

/// What a block of a retriever's encoder keeps for the backward pass: of the hidden size in f32
/// what the block reads and its first norm's output, by which the norms find what they need; in the
/// type of products queries, keys, values, what attention gives, and what GELU reads.
pub(super) const ENCODER: BlockWidths = BlockWidths {
    stream: 2.0,
    hidden: 4.0,
    queries: 0.0,
    key_values: 0.0,
    intermediate: 1.0,
    linear: 0.0,
};

/// Rows of the hidden size in f32 that each token takes beside the blocks: what the mean reads, and
/// what comes and goes.
pub(super) const ENCODER_STREAMS: f64 = 7.0;

/// Copies of a retriever's parameters that a step makes while the memory of its activations is kept
/// for the next: gradient and clipped gradient, less what of them takes the place of activations that
/// are gone by then.
pub(super) const RETRIEVER_COPIES: f64 = 1.5;

/// The same of a save, which has given the memory of activations back: two moments, and the one that
/// is being copied.
pub(super) const RETRIEVER_SAVE_COPIES: f64 = 3.0;

/// A block of an encoder that only reads texts.
pub(super) const READING: BlockWidths = BlockWidths {
    stream: 2.0,
    hidden: 4.0,
    queries: 0.0,
    key_values: 0.0,
    intermediate: 1.0,
    linear: 0.0,
};

/// A block that only computes its output.
pub(super) const FORWARD: BlockWidths = BlockWidths {
    stream: 2.0,
    hidden: 1.0,
    queries: 0.0,
    key_values: 0.0,
    intermediate: 3.0,
    linear: 1.0,
};
