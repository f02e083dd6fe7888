//! A model and a suite to predictions, scores and a report.

pub mod generate;
