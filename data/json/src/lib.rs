//! Reads strict JSON as a `serde_json::Value`, and writes the text that Python would write.
//!
//! Reading rejects everything that RFC 8259 rejects and everything that does not fit into a 64-bit
//! float or a UTF-8 string, because a lenient reader hides a model's mistakes.
//! Writing follows Python's `json.dumps` byte for byte, because chat templates and training targets
//! are usually written with it, and a model sees the difference between `1e+22` and `1e22`.
//!
//! Integers outside 64 bits are stored as the nearest 64-bit float, as in `serde_json` without
//! arbitrary precision, so they do not round-trip. If the exact value matters, use [`parse_exact`],
//! which reads numbers as decimals of any length. For training data, [`oversized_integer`] finds
//! such integers beforehand.
//!
//! The crate also reads JSON Lines ([`lines`]) and YAML ([`yaml`]), validates values by JSON Schema
//! ([`json_schema`]) and computes with Python's values ([`python`]).
//!
//! ```
//! use serde_json::json;
//! use tooltune_json::{Style, dumps};
//!
//! // Targets are written as Python's json.dumps writes them, byte for byte.
//! assert_eq!(dumps(&json!({"tide": [1.0, null]}), Style::Python), r#"{"tide": [1.0, null]}"#);
//! ```

#[cfg(test)]
mod any_json;
pub mod blank;
pub mod budgets;
mod complexity;
mod contained;
mod decimal;
mod exact;
pub mod faults;
mod float;
pub mod gzip;
pub mod input_limits;
mod integers;
pub mod json_schema;
mod kind;
pub mod line_check;
pub mod lines;
mod order;
mod parse;
pub mod printable;
pub mod python;
mod read_error;
mod render;
mod unique;
mod value_budget;
pub mod yaml;

pub use complexity::{Complexity, json_complexity, json_depth, schema_complexity};
pub use contained::catch_panic;
pub use decimal::Decimal;
pub use exact::{ExactJson, parse_exact};
pub use float::python_float_repr;
pub use integers::{OversizedInteger, oversized_integer};
pub use kind::kind_of;
pub use order::order_by_schema;
pub use parse::{JsonError, MAX_LEVELS, bytes_outside_strings, from_slice, parse};
pub use read_error::{ReadError, refuse_a_folder};
pub use render::{
    Part, PathStep, RenderedSpan, Style, dumps, dumps_with_places, dumps_with_scalars,
};
pub use unique::{DuplicateKey, parse_unique};
pub use value_budget::{TooManyValues, ValueBudget, n_values};
