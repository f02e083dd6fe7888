//! What can be wrong with examples or options on their way into batches.

use thiserror::Error;

/// A reason why no batch, or no order of batches, can be made.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum BatchError {
    /// A micro-batch of nothing was asked for, or a data set is empty.
    #[error("there are no examples; a batch needs at least one")]
    NoExamples,

    /// An epoch has more examples than are counted.
    #[error(
        "an epoch would have {n} examples, and at most 4,294,967,295 are counted; set data.max_samples, or lower the weights of data.train"
    )]
    TooManyExamples {
        /// How many.
        n: usize,
    },

    /// An example has no tokens at all.
    #[error("example {id:?} has no tokens; remove it or give it text")]
    EmptyExample {
        /// The example's id as the data set gives it.
        id: String,
    },

    /// An example does not carry exactly one loss weight per token.
    #[error("example {id:?} has {n_tokens} tokens but {n_weights} loss weights")]
    WeightCount {
        /// The example's id as the data set gives it.
        id: String,
        /// Length of `input_ids`.
        n_tokens: usize,
        /// Length of `loss_weights`.
        n_weights: usize,
    },

    /// A loss weight is negative, infinite or not a number.
    #[error(
        "example {id:?}, token {token_idx}: the loss weight {weight} is not a finite number of at \
         least 0; set mask.weights to values like 0, 0.5 or 1"
    )]
    Weight {
        /// The example's id as the data set gives it.
        id: String,
        /// Position in `input_ids`, from 0.
        token_idx: usize,
        /// The weight as given.
        weight: f32,
    },

    /// A whole document does not fit into one pack; documents are never cut to fit.
    #[error(
        "example {example} has {n_tokens} tokens, a pack holds {max_length}; raise max_length or \
         drop the example"
    )]
    LongerThanPack {
        /// `number N` (from 0), or the id once [`BatchError::with_ids`] knew it.
        example: String,
        /// Position of the example in the data set, from 0.
        example_idx: usize,
        /// Tokens of the example.
        n_tokens: usize,
        /// Tokens that a pack holds.
        max_length: usize,
    },

    /// A count that must be at least one is zero.
    #[error("{option} is 0; give at least 1")]
    ZeroOption {
        /// The option's name in the configuration.
        option: &'static str,
    },

    /// Packing and grouping by length were both asked for.
    #[error(
        "group_by_length has no effect on packs, which are all of nearly one length; turn one of the two off"
    )]
    PackedAndGrouped,
}

impl BatchError {
    /// Names the example by its id where only its position was known.
    ///
    /// [`StepOrder::new`](super::StepOrder::new) sees lengths alone; the caller holds the ids.
    #[must_use]
    pub fn with_ids(mut self, id_of: impl Fn(usize) -> String) -> Self {
        if let Self::LongerThanPack {
            example,
            example_idx,
            ..
        } = &mut self
        {
            *example = format!("{:?}", id_of(*example_idx));
        }
        self
    }
}
