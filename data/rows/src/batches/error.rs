//! Errors in examples and in options for batches.

use thiserror::Error;

/// A reason why batches or their order cannot be built.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum BatchError {
    /// A micro-batch without examples was requested, or a data set is empty.
    #[error("there are no examples; give at least one")]
    NoExamples,

    /// An epoch has more examples than can be counted.
    #[error(
        "an epoch would have {n} examples, but the limit is 4,294,967,295; set \
         data.max_samples, or lower the weights of data.train"
    )]
    TooManyExamples {
        /// Number of examples.
        n: usize,
    },

    /// An example without tokens.
    #[error("example {id:?} has no tokens; remove it or give it text")]
    EmptyExample {
        /// Id of the example in the data set.
        id: String,
    },

    /// An example without exactly one loss weight per token.
    #[error("example {id:?} has {n_tokens} tokens but {n_weights} loss weights")]
    WeightCount {
        /// Id of the example in the data set.
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
        /// Id of the example in the data set.
        id: String,
        /// Position in `input_ids`, from 0.
        token_idx: usize,
        /// The invalid weight.
        weight: f32,
    },

    /// A document does not fit into one pack; documents are never truncated to fit.
    #[error(
        "example {example} has {n_tokens} tokens, but a pack can have {max_length}; raise max_length or \
         drop the example"
    )]
    LongerThanPack {
        /// `number N` (from 0); [`BatchError::with_ids`] replaces it by the id.
        example: String,
        /// Position of the example in the data set, from 0.
        example_idx: usize,
        /// Tokens of the example.
        n_tokens: usize,
        /// Token limit of a pack.
        max_length: usize,
    },

    /// An option that must be at least 1 is 0.
    #[error("{option} is 0; set it to at least 1")]
    ZeroOption {
        /// Name of the option in the configuration.
        option: &'static str,
    },

    /// Packing and grouping by length are both enabled.
    #[error(
        "group_by_length has no effect with packing, because packs have nearly the same \
         length; turn one of the two off"
    )]
    PackedAndGrouped,
}

impl BatchError {
    /// Replaces the position of the example by its id.
    ///
    /// [`StepOrder::new`](super::StepOrder::new) knows only lengths; the caller has the ids.
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
