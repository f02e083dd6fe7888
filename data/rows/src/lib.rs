//! Rows of text become weighted tokens, and tokens become the batches of a step.
//!
//! This is what training reads, and what the rest of the family `data` stands on: no device, no
//! Burn, no network, no sandbox and no grammar over tokens.
//!
//! ```
//! use serde_json::json;
//! use tooltune_rows::json::{Style, dumps};
//!
//! // Targets are written as Python's json.dumps writes them, byte for byte.
//! assert_eq!(dumps(&json!({"tide": [1.0, null]}), Style::Python), r#"{"tide": [1.0, null]}"#);
//! ```

pub mod batches;
pub mod budgets;
mod contained;
pub mod examples;
pub mod faults;
mod in_order;
pub mod json;
pub mod json_schema;
pub mod lines;
pub mod python;
mod read_error;
pub mod regular_file;
pub mod statistics;
pub mod text;
pub mod tools;

pub use contained::contained;
pub use in_order::in_order;
pub use read_error::{ReadError, refuse_a_folder};
