//! Reads strict JSON as a `serde_json::Value`, and writes the text that Python would write.
//!
//! Reading refuses everything that RFC 8259 refuses and what a 64-bit float or a UTF-8 string
//! cannot hold, because a lenient reader hides a model's mistakes.
//! Writing follows Python's `json.dumps` byte for byte: chat templates and training targets of
//! this field are written with it, and a model sees the difference between `1e+22` and `1e22`.
//!
//! Integers outside 64 bits are held as the nearest 64-bit float, as `serde_json` does without
//! arbitrary precision, so they do not round-trip. Where their value counts, [`parse_exact`] reads
//! numbers as decimals of any length; where they would be learned, [`oversized_integer`] finds them
//! beforehand.

mod complexity;
mod decimal;
mod exact;
mod float;
mod integers;
mod order;
mod parse;
mod render;
mod unique;

pub use complexity::{Complexity, json_complexity, json_depth, schema_complexity};
pub use decimal::Decimal;
pub use exact::{ExactJson, parse_exact};
pub use float::python_float_repr;
pub use integers::{OversizedInteger, oversized_integer};
pub use order::in_schema_order;
pub use parse::{JsonError, MAX_LEVELS, outside_strings, parse};
pub use render::{
    Part, PathStep, RenderedSpan, Style, dumps, dumps_with_places, dumps_with_scalars,
};
pub use unique::{DuplicateKey, parse_unique};
