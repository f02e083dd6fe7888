//! The trainer: models, steps, recipes, evaluation and export over the three leaf crates.
//!
//! In reading order: [`config`] is what the user asked for; [`base_model`], [`models`] and
//! [`lora`] are the network, [`retriever`] the one beside it; [`optim`] one update; [`recipes`] a whole run; [`eval`] what a
//! checkpoint is worth; [`export`] its way to serving. [`plan`] predicts a run and [`doctor`] looks at
//! the machine before it.

pub mod base_model;
pub mod budgets;
pub mod cli;
pub mod commands;
pub mod config;
pub mod device;
pub mod doctor;
pub mod encoder;
pub mod error;
pub mod eval;
pub mod export;
pub mod interrupt;
pub mod lora;
pub mod metrics;
pub mod models;
mod not_finite;
pub mod optim;
pub mod out_of_memory;
pub mod plan;
pub mod process;
pub mod progress;
pub mod recipes;
pub mod retriever;
pub mod rows;
pub mod settings;

pub use error::Error;
