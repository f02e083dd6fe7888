//! Parses JSON strings inside rows as strictly as the rows themselves.

use serde_json::Value;
use tooltune_json as json;
use tooltune_json::{OversizedInteger, ReadError};

use super::error::FormatError;
use crate::text::error::DataError;

/// Parses the JSON string at `field`; `expected` describes the allowed values.
///
/// # Errors
///
/// - the string is not one JSON value, or an object in it has a duplicate key
/// - it contains an integer beyond 64 bits
pub(super) fn parse_json_string(
    text: &str,
    field: &str,
    expected: &'static str,
) -> Result<Value, DataError> {
    let value = json::parse_unique(text).map_err(|error| FormatError::JsonText {
        field: field.to_owned(),
        reason: error.to_string(),
        expected,
    })?;
    match json::oversized_integer(text, |_| true) {
        None => Ok(value),
        Some(oversized) => {
            let field = if oversized.field.starts_with('[') {
                format!("{field}{}", oversized.field)
            } else {
                format!("{field}.{}", oversized.field)
            };
            Err(ReadError::from(OversizedInteger { field, ..oversized }).into())
        }
    }
}
