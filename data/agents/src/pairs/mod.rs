//! Queries with their right documents in, batches for contrastive learning out.
//!
//! Each distinct text is kept once and known by its number, so that a batch embeds it once and two
//! pairs can be compared by number. What is right for a query is known over the whole set: another
//! right document of a query is never among the wrong ones of its pairs. Texts that an encoder
//! reads alike are one text ([`PairSet::merged`]).

mod batch;
mod order;
mod read;
mod set;

pub use batch::{BatchRow, PairBatch};
pub use order::{PairOrder, PairOrderOptions};
pub use read::{PAIR_FIELDS, read_documents, read_pairs, read_pairs_of};
pub use set::{Pair, PairSet, PlacedText};
