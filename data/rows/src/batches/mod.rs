//! Builds the micro-batches of optimizer steps from tokenized examples, in a seeded order.
//!
//! [`StepOrder`] selects the examples of a step, [`collate`] concatenates them into a
//! [`MicroBatch`], and a [`StepBatch`] sums the loss weights of all micro-batches of the step.
//! Micro-batches are flat: documents follow each other without padding, `cu_seqlens` contains their
//! boundaries, and attention is restricted to each document. A batch of four examples and a pack of
//! four examples are therefore identical, and no compute is spent on padding.

mod collate;
mod error;
mod order;
mod packing;
mod random;

#[cfg(test)]
mod tests;

pub use collate::{Example, MicroBatch, Padding, StepBatch, collate, shift_for_next_token};
pub use error::BatchError;
pub use order::{Cursor, GroupByLength, OrderOptions, Part, Shuffle, StepOrder};
pub use packing::Packing;
pub use random::SeededRandom;
