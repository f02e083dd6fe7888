//! Rows of text become weighted tokens, and tokens become the batches of a step.
//!
//! This is what training reads, and what the rest of the family `data` stands on: no device, no
//! Burn, no network, no sandbox and no grammar over tokens.

pub mod batches;
pub mod budgets;
mod contained;
pub mod faults;
pub mod json;
pub mod json_schema;
pub mod lines;
pub mod python;
pub mod regular_file;
pub mod text;
pub mod tools;
