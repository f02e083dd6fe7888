//! Converts rows of text to weighted tokens and tokens to training batches.
//!
//! The crate reads the rows for training. It requires no device, no Burn, no network, no sandbox
//! and no token-level grammar.
//!
//! ```
//! use tooltune_rows::batches::SeededRandom;
//!
//! // Orders and initial factors are functions of the seed alone.
//! let mut random = SeededRandom::new(17, 0);
//! assert!(random.below(10) < 10);
//! ```

pub mod batches;
pub mod budgets;
pub mod examples;
mod in_order;
pub mod statistics;
pub mod text;

pub use in_order::process_in_order;
