//! The messages between the first process and the others during an evaluation.

use serde::{Deserialize, Serialize};
use tooltune_rows::text::TokenizedExample;

use crate::error::Error;
use crate::eval::generate::Generation;
use crate::eval::held::{GrammarSource, Rewritten};
use crate::eval::loss::ExampleLoss;

/// What the first process asks of another one.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Vote before each forward pass, because the GPUs of a node divide the weights.
    BeginVotes,
    /// Stop voting when all ranks of the node do.
    EndVotes,
    /// Complete these prompts, together with those in progress.
    Complete {
        max_new_tokens: usize,
        prompts: Vec<ServedPrompt>,
    },
    /// Compute the losses of these forward passes.
    Losses { passes: Vec<ServedPass> },
    /// Stop the work in progress.
    Cancel,
    /// The evaluation is over.
    Done,
}

/// What another process answers.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Reply {
    /// A prompt is complete.
    Completed {
        number: usize,
        generation: Generation,
    },
    /// The bits of sum and weight of each example of a pass. JSON has no value for a loss that is
    /// not finite.
    Losses {
        number: usize,
        bits: Vec<(u64, u64)>,
    },
    /// A signal stopped the work, which is not finished.
    Interrupted,
    /// The answer to [`Request::Cancel`].
    Cancelled,
}

/// A constraint with the attempt that it is for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ConstraintSource {
    pub(super) grammar: GrammarSource,
    pub(super) rewritten: Option<Rewritten>,
}

/// A prompt for another process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ServedPrompt {
    pub(super) number: usize,
    pub(super) ids: Vec<u32>,
    pub(super) stream: u64,
    pub(super) constraint: Option<ConstraintSource>,
}

/// A forward pass for another process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ServedPass {
    pub(super) number: usize,
    pub(super) examples: Vec<ServedExample>,
}

/// An example of a pass.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ServedExample {
    id: String,
    input_ids: Vec<u32>,
    /// Bits of the loss weights.
    weight_bits: Vec<u32>,
}

impl From<&TokenizedExample> for ServedExample {
    fn from(example: &TokenizedExample) -> Self {
        Self {
            id: example.id.clone(),
            input_ids: example.input_ids.clone(),
            weight_bits: example.loss_weights.iter().map(|w| w.to_bits()).collect(),
        }
    }
}

impl From<ServedExample> for TokenizedExample {
    fn from(example: ServedExample) -> Self {
        Self {
            id: example.id,
            input_ids: example.input_ids,
            loss_weights: example
                .weight_bits
                .into_iter()
                .map(f32::from_bits)
                .collect(),
        }
    }
}

/// The bits of losses.
pub(super) fn loss_bits(losses: &[ExampleLoss]) -> Vec<(u64, u64)> {
    let losses = losses.iter();
    losses
        .map(|loss| (loss.sum.to_bits(), loss.weight.to_bits()))
        .collect()
}

/// The losses with these bits.
pub(super) fn losses_of_bits(bits: &[(u64, u64)]) -> Vec<ExampleLoss> {
    let losses = bits.iter().map(|&(sum, weight)| ExampleLoss {
        sum: f64::from_bits(sum),
        weight: f64::from_bits(weight),
    });
    losses.collect()
}

/// A message as JSON.
pub(crate) fn to_bytes(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("messages have text keys")
}

/// Reads [`to_bytes`].
///
/// # Errors
///
/// The bytes are no such message.
pub(crate) fn from_bytes<'b, T: Deserialize<'b>>(bytes: &'b [u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|_| unreadable())
}

/// The error for a message of another program version, which the meeting refuses.
pub(crate) fn unreadable() -> Error {
    Error::Usage(
        "a message of another rank cannot be read; run the same tooltune build on all ranks"
            .to_owned(),
    )
}
