//! Measures the size of a copied schema part, and of paths.
//!
//! A leaf's flat name repeats every name above the leaf, and a reference copies its target, so both
//! sizes are checked in advance.

use crate::budgets::FLAT_BYTES;
use serde_json::Value;
use tooltune_json::PathStep;

use super::error::FlatError;

/// Size of a number, and of the punctuation around a value, in bytes.
const SCALAR_BYTES: usize = 8;

/// Size of a value in bytes.
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

/// Size of a path in bytes.
pub(super) fn path_bytes(path: &[PathStep]) -> usize {
    let step = |step: &PathStep| match step {
        PathStep::Key(key) => key.len(),
        PathStep::Index(_) => SCALAR_BYTES,
    };
    path.iter().map(step).sum()
}

/// The error for exceeding [`FLAT_BYTES`].
pub(super) fn too_many_bytes() -> FlatError {
    FlatError::TooLarge {
        what: "bytes (FLAT_BYTES in docs/limits.md) in the names of its parts and its copies",
        max: FLAT_BYTES,
    }
}
