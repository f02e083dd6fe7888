//! Tokenized examples in, the micro-batches of one optimizer step out, in a seeded order.
//!
//! [`StepOrder`] says which examples make a step, [`collate`] lays them end to end in a
//! [`MicroBatch`], and a [`StepBatch`] sums the loss weights of all micro-batches of the step.
//! The decision to question: a micro-batch is flat. Documents follow each other without padding,
//! `cu_seqlens` says where each begins, and attention stays inside a document. A batch of four
//! examples and a pack of four examples are therefore the same thing, and no compute goes to
//! padding.

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
