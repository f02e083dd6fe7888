//! The trainer: models, steps, recipes, evaluation and export over the three leaf crates.
//!
//! In reading order: [`config`] is what the user asked for; [`base_model`], [`models`] and
//! [`lora`] are the network, [`retriever`] the one beside it; [`optim`] one update; [`recipes`] a whole run; [`eval`] what a
//! checkpoint is worth; [`export`] its way to serving. [`plan`] predicts a run and [`doctor`] looks at
//! the machine before it.
//!
//! ```
//! use std::collections::BTreeMap;
//! use tooltune::config::MetricExpression;
//!
//! // What a checkpoint is selected by.
//! let metric = MetricExpression::parse("0.5*slot.mean + 0.5*goat.sa")?;
//! let measured = BTreeMap::from([("slot.mean".to_owned(), 0.8), ("goat.sa".to_owned(), 0.4)]);
//! assert!((metric.value(&measured).unwrap_or_default() - 0.6).abs() < 1e-12);
//! # Ok::<(), String>(())
//! ```

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
pub mod examples;
pub mod export;
pub mod interrupt;
pub mod log;
pub mod lora;
pub mod metrics;
pub mod modelfile;
pub mod models;
mod not_finite;
pub mod optim;
pub mod out_of_memory;
pub mod plan;
pub mod process;
pub mod profile;
pub mod progress;
pub mod recipes;
pub mod retriever;
pub mod rows;
pub mod settings;
pub mod structure;
mod terminal_table;

pub use error::Error;
