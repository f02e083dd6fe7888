//! Evaluation: runs suites on models, scores predictions and writes reports.

pub mod by_file;
pub mod constraints;
pub mod endings;
pub mod endpoint_generator;
pub mod generate;
pub mod generator;
pub mod groups;
pub mod held;
pub mod in_loop;
pub mod journal;
pub mod loss;
pub mod origin;
pub mod pipeline_generator;
pub mod prediction;
pub mod ranked_texts;
pub mod report_files;
pub mod saved;
pub mod served;
pub mod suites;
pub mod text_stream;
