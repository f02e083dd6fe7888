//! The trainer: models, training steps, recipes, evaluation and export, built on the other crates.
//!
//! Read the modules in this order. [`config`] parses settings. [`base_model`], [`models`] and
//! [`lora`] build the network, and [`retriever`] the embedding model. [`optim`] computes one
//! update, and [`recipes`] run the whole training. [`eval`] evaluates checkpoints, and [`export`]
//! writes files for serving. [`plan`] predicts the memory and time of a run; [`doctor`] checks the
//! machine.
//!
//! ```
//! use std::collections::BTreeMap;
//! use tooltune::config::MetricExpression;
//!
//! // The metric that selects the best checkpoint.
//! let metric = MetricExpression::parse("0.5*slot.mean + 0.5*goat.sa")?;
//! let measured = BTreeMap::from([("slot.mean".to_owned(), 0.8), ("goat.sa".to_owned(), 0.4)]);
//! assert!((metric.value(&measured).unwrap_or_default() - 0.6).abs() < 1e-12);
//! # Ok::<(), String>(())
//! ```

pub mod base_model;
pub mod budgets;
pub mod checkpoint_choice;
pub mod cli;
pub mod commands;
pub mod device;
pub mod doctor;
pub mod encoder;
pub mod error;
pub mod eval;
pub mod examples;
pub mod export;
pub mod interrupt;
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
pub mod recipes;
pub mod retriever;
pub mod rows;
pub mod settings;
pub mod structure;

pub use error::Error;

pub use tooltune_config as config;
