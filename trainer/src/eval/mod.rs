//! A model and a suite to predictions, scores and a report.

pub mod documents;
pub mod encoder;
pub mod generate;
pub mod goat;
pub mod in_loop;
pub mod loss;
pub mod retrieval;
pub mod slot;
