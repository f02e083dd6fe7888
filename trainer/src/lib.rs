//! The trainer: models, steps, recipes, evaluation and export over the three leaf crates.
//!
//! In reading order: [`models`] and [`lora`] are the network, [`optim`] one update of it, and
//! [`eval`] what a checkpoint is worth.

pub mod eval;
pub mod lora;
pub mod models;
pub mod optim;
