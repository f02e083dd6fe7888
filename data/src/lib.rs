//! Text in, host-memory token batches out, and the metrics that compare text with text.
//!
//! No device and no Burn here: everything in this crate compiles and tests in seconds.

pub mod agents;
pub mod batches;
pub mod benchmarks;
pub mod budgets;
mod contained;
pub mod endpoint;
pub mod executors;
mod faults;
pub mod flat;
pub mod grammar;
pub mod http;
pub mod json;
mod json_schema;
mod lines;
pub mod pairs;
pub mod python;
pub mod regular_file;
pub mod report;
pub mod sandbox;
pub mod score;
pub mod statistics;
pub mod synth;
pub mod text;
pub mod tools;
pub mod truncation;
