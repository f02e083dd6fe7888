//! Scores retrieval: rankings against their gold documents ([`crate::ranking`]).

mod suite;

pub use suite::SUITE;
