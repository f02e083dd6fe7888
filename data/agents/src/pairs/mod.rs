//! Turns queries with positive documents into batches for contrastive training.
//!
//! Each distinct text is stored once and identified by its index, so that a batch embeds it once
//! and pairs are compared by index. The positives of a query are collected over the whole set, so
//! no positive document of a query is ever among the negatives of its pairs. Texts that an encoder
//! cannot distinguish are merged ([`PairSet::merge`]).

mod batch;
mod order;
mod read;
mod set;

pub use batch::{BatchRow, PairBatch};
pub use order::{PairOrder, PairOrderOptions};
pub use read::{PAIR_FIELDS, read_documents, read_pairs, read_pairs_among, read_pairs_of};
pub use set::{LocatedText, Pair, PairSet};
