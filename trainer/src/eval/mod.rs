//! A model and a suite to predictions, scores and a report.

pub mod agents;
pub mod agents_in_loop;
pub mod apibank;
pub mod by_file;
pub mod code;
pub mod endings;
pub mod endpoint_generator;
pub mod executor;
pub mod flat_forms;
pub mod generate;
pub mod generator;
pub mod goat;
pub mod in_loop;
pub mod journal;
pub mod judge;
pub mod loss;
pub mod nestful;
pub mod open_suites;
pub mod report_files;
pub mod restbench;
pub mod retrieval;
pub mod saved;
pub mod slot;
pub mod toolqa;
