//! Scores retrieval: rankings beside the documents that should stand in them, by [`crate::ranking`].

mod suite;

pub use suite::SUITE;
