//! Generates synthetic data sets for trying a training run without downloads, and imports public
//! data sets.
//!
//! All synthetic sentences and names come from TOML tables in this crate. A data set depends only
//! on its options: the same rows, seed and split give the same bytes.
//!
//! ```
//! use tooltune_synth::slot::{SlotSynthOptions, Split, generate};
//!
//! let options = SlotSynthOptions { rows: 2, seed: 1, split: Split::Train };
//! let rows: Vec<_> = generate(&options).collect();
//! assert_eq!(rows, generate(&options).collect::<Vec<_>>());
//! ```

pub mod budgets;
pub mod goat;
pub mod graph;
pub mod import;
pub mod slot;
pub mod statistics;
pub mod toolqa;

mod table;
