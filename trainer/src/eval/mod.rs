//! A model and a suite to predictions, scores and a report.

pub mod by_file;
pub mod constraints;
pub mod endings;
pub mod endpoint_generator;
pub mod generate;
pub mod generator;
pub mod in_loop;
pub mod journal;
pub mod loss;
pub mod pipeline_generator;
pub mod prediction;
pub mod ranked_texts;
pub mod report_files;
pub mod saved;
pub mod suites;
