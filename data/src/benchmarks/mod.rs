//! One folder for each benchmark: its rules of scoring, from texts to numbers.
//!
//! Nothing here generates text or reads a model: the same functions score our own generations,
//! those of a server and those in a file.

mod bootstrap;
pub mod goat;
pub mod retrieval;
pub mod slot;

pub use bootstrap::Estimate;
