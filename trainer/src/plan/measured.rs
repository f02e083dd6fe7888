//! Constants of the memory model, measured on this program.
//!
//! Setup: x86-64 Linux with glibc, two threads, changing one factor at a time. `tooltune plan
//! --probe --format json` reports VmRSS before and after loading the weights, and VmHWM after a
//! step. VmHWM of `tooltune train` over three steps, for language models and retrievers, gives the
//! cost of updates, saves and evaluations. The block constants are counted tensor by tensor from
//! the operations' saved and returned tensors; a test compares them with measurements. Count them
//! again if a kernel saves more or fewer tensors.

use crate::recipes::kept_blocks::BlockWidths;

/// Memory of a process before it loads a model: code, threads, initial heap.
pub(super) const PROGRAM_BYTES: f64 = 32e6;

/// Like [`PROGRAM_BYTES`], for a run that trains only a retriever.
pub(super) const RETRIEVER_PROGRAM_BYTES: f64 = 17e6;

/// Bytes of a tokenizer per vocabulary entry: text, merges, two maps.
pub(super) const TOKENIZER_BYTES_PER_ENTRY: f64 = 310.0;

/// Bytes of an example per token: id and weight, in vectors grown by doubling, and a share of the
/// row's id.
pub(super) const EXAMPLE_BYTES_PER_TOKEN: f64 = 18.0;

/// Memory that remains after the first evaluation for any compute dtype: scratch memory per thread,
/// compiled templates and fragmented heap.
pub(super) const EVALUATION_BYTES: f64 = 40e6;

/// Additional memory after the first evaluation with f32 matmuls, measured without bf16
/// instructions: scratch memory of matmuls, and pool memory kept between generation and encoding.
pub(super) const F32_EVALUATION_BYTES: f64 = 50e6;

/// Copies of the adapter that live for the whole run: parameters and two moments.
pub(super) const ADAPTER_COPIES: f64 = 3.0;

/// Copies of the LoRA factors packed for matmuls, one per direction, in the compute dtype.
pub(super) const PACKED_COPIES: f64 = 2.0;

/// Temporary copies of the trained values in an update: the clipped gradient. The gradient and the
/// new values reuse buffers of the step.
pub(super) const UPDATE_COPIES: f64 = 1.0;

/// Bytes of the exact sum of a trained value's gradient, a 64-bit integer.
pub(super) const SUM_BYTES: f64 = 8.0;

/// Additional copies of fully trained weights: first their gradients before concatenation and the
/// values added to them, later the new weights copied into the model.
pub(super) const WHOLE_WEIGHT_COPIES: f64 = 2.0;

/// Temporary copies of the trained values in a save: the values twice, flat and by name, and two
/// moments.
pub(super) const SAVE_COPIES: f64 = 4.1;

/// Additional copies in a save of factors that are written with twice the rank.
pub(super) const DOUBLED_COPIES: f64 = 2.0;

/// Copies of a chunk's exponentials in the compute dtype while loss and gradient are computed: one,
/// plus a few columns of logits and gradients per thread.
pub(super) const LOGITS_COPIES: f64 = 1.1;

/// Like [`LOGITS_COPIES`], for a trained head, which uses unfused f32 operations: logits,
/// log-probabilities, probabilities and gradients.
pub(super) const TRAINED_LOGITS_COPIES: f64 = 4.0;

/// Activations that an encoder block keeps for the backward pass. With the hidden size in f32: the
/// block input and the output of its first norm, from which the norms recompute the rest. In the
/// compute dtype: queries, keys, values, attention output and GELU input.
pub(super) const ENCODER: BlockWidths = BlockWidths {
    stream: 2.0,
    hidden: 4.0,
    queries: 0.0,
    key_values: 0.0,
    intermediate: 1.0,
    linear: 0.0,
};

/// f32 vectors of the hidden size per token outside the blocks: the mean-pooling input, and
/// temporaries.
pub(super) const ENCODER_STREAMS: f64 = 7.0;

/// Copies of a retriever's parameters in a step while its activation memory is retained: gradient
/// and clipped gradient, minus the part that reuses freed activations.
pub(super) const RETRIEVER_COPIES: f64 = 1.5;

/// Copies of a retriever's parameters in a save, after the activation memory was released: two
/// moments and the copy being written.
pub(super) const RETRIEVER_SAVE_COPIES: f64 = 3.0;

/// Activations of a block in an encoder that is only used for inference.
pub(super) const READING: BlockWidths = ENCODER;

/// Activations of a block in a forward pass without gradients.
pub(super) const FORWARD: BlockWidths = BlockWidths {
    stream: 2.0,
    hidden: 1.0,
    queries: 0.0,
    key_values: 0.0,
    intermediate: 3.0,
    linear: 1.0,
};
