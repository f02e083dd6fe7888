//! Data sets of the project's own making, for trying a training run without any download, and rows
//! of public ones.
//!
//! Every sentence and every name of our own comes from the tables here, TOML files beside the code.
//! A data set is a function of its options: the same rows, seed and split give the same bytes.
//!
//! ```
//! use tooltune_synth::slot::{SlotSynthOptions, Split, generate};
//!
//! let options = SlotSynthOptions { rows: 2, seed: 1, split: Split::Train };
//! let rows: Vec<_> = generate(&options).collect();
//! assert_eq!(rows, generate(&options).collect::<Vec<_>>());
//! ```

pub mod goat;
pub mod graph;
pub mod import;
pub mod slot;
pub mod statistics;

mod table;
