//! Measures the bytes that a copy of a part of a schema, or of the way to one, takes.
//!
//! A flat schema repeats every name above a leaf in that leaf's name, and a reference copies what it
//! leads to, so that both are counted before they are made.

use serde_json::Value;
use tooltune_rows::budgets::FLAT_BYTES;
use tooltune_rows::json::PathStep;

use super::error::FlatError;

/// Bytes of a number, and of what stands around a value.
const SCALAR_BYTES: usize = 8;

/// Bytes of a value.
pub(super) fn n_bytes(value: &Value) -> usize {
    SCALAR_BYTES
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(n_bytes).sum(),
            Value::Object(fields) => {
                let field = |(key, field): (&String, &Value)| key.len() + n_bytes(field);
                fields.iter().map(field).sum()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
}

/// Bytes of a path.
pub(super) fn path_bytes(path: &[PathStep]) -> usize {
    let step = |step: &PathStep| match step {
        PathStep::Key(key) => key.len(),
        PathStep::Index(_) => SCALAR_BYTES,
    };
    path.iter().map(step).sum()
}

/// The error of more than [`FLAT_BYTES`].
pub(super) fn too_many_bytes() -> FlatError {
    FlatError::TooLarge {
        what: "bytes (FLAT_BYTES in docs/limits.md) in the names of its parts and what it copies",
        max: FLAT_BYTES,
    }
}
